"""A user's script without a `__main__` guard, run by test_programs.py: writes what it saw as JSON."""

import json
import os
import signal
import sys

import torch
from torch import nn

import sancus


class Net(nn.Module):
    """Exists in this script alone."""

    def __init__(self, features, hidden, classes):
        super().__init__()
        self.first = nn.Parameter(torch.randn(features, hidden) * 0.1)
        self.second = nn.Parameter(torch.randn(hidden, classes) * 0.1)

    def forward(self, x, exchange):
        h = exchange.propagate(x, 0, self.first).relu()
        return exchange.propagate(h, 1, self.second)


class Raises(Net):
    def forward(self, x, exchange):
        if os.environ["RANK"] == "1":
            raise ValueError("boom")
        return super().forward(x, exchange)


class Killed(Net):
    def forward(self, x, exchange):
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x, exchange)


class Wide(Net):
    def __init__(self, features, hidden, classes):
        super().__init__(features, hidden, classes + 1)


DATA = "synthetic:nodes=120,classes=4"
torch.ones(500, 500) @ torch.ones(500, 500)  # torch has threads of its own by now
out, seen, said = sys.argv[1], [], {}
result = sancus.train(DATA, Net, ranks=2, epochs=3, hidden=8, out=out, after_epoch=seen.append)
module = Net(sancus.load(DATA).feature_count, 8, 4)
again = sancus.train(DATA, module, ranks=2, epochs=2, quiet=True)
for model in (Raises, Killed, Wide):
    try:
        sancus.train(DATA, model, ranks=2, epochs=2, quiet=True)
    except (sancus.RankError, sancus.UserError) as error:
        said[model.__name__] = [type(error).__name__, str(error)]
facts = {
    "repr": repr(result),
    "logits": list(result.logits.shape),
    "agree": bool((result.logits.argmax(1) == result.predictions).all()),
    "epochs": [record["epoch"] for record in seen],
    "records": [record["loss"] for record in result.epochs],
    "trained": again.model is module,
    "said": said,
}
print("FACTS " + json.dumps(facts))
