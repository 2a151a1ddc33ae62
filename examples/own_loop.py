"""A training loop of one's own: `torchrun --nproc-per-node 4 examples/own_loop.py [graph]`."""

import sys

import torch
from my_model import Net

from sancus import api

graph = api.load(sys.argv[1] if len(sys.argv) > 1 else "synthetic:nodes=600")
config = api.settings(plan="halo", staleness="epoch-fixed:bound=1")
transport = api.join()  # torchrun's ranks; alone without a launcher
shard = api.partition(graph, transport, "metis")
exchange = api.make_exchange(shard, transport, config, Net.normalisation)
task = api.make_task(shard, transport, config)

torch.manual_seed(0)  # the same weights on all ranks
model = Net(graph.feature_count, 32, graph.classes)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(30):
    exchange.begin_epoch(epoch, model)
    model.train()
    optimizer.zero_grad()
    task.loss(model(exchange.input, exchange)).backward()  # this rank's share of the loss
    api.sum_gradients(model, exchange)
    optimizer.step()
model.eval()
with torch.no_grad(), exchange.exact():  # fresh, in full precision
    scores = api.score(task, model(exchange.input, exchange), exchange)
if transport.rank == 0:
    print(f"{transport.size} ranks: {task.metric} on test {scores['test']:.3f}", flush=True)
api.leave(transport)
