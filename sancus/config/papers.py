"""Which paper a plug-in or preset comes from, for `sancus list`; the whole story is in `docs/papers.md`."""

from __future__ import annotations

CAGNET = "Tripathy et al., SC 2020 (CAGNET)"
SANCUS = "Peng et al., PVLDB 2022 (SANCUS)"
PIPEGCN = "Wan et al., ICLR 2022 (PipeGCN)"
BNS = "Wan et al., MLSys 2022 (BNS-GCN)"
SYLVIE = "Zhang et al., 2023 (Sylvie)"
SUPERGCN = "Zhuang et al., 2024 (SuperGCN)"
DIGEST = "Chai et al., 2022 (DIGEST)"
GNNPIPE = "Chen et al., 2023 (GNNPipe)"
ADAQP = "Wan et al., MLSys 2023 (AdaQP)"
LLCG = "Ramezani et al., ICLR 2022 (LLCG)"
POWERSGD = "Vogels et al., NeurIPS 2019 (PowerSGD)"
SEIDE = "Seide et al., Interspeech 2014 (1-bit SGD)"
DISTDGL = "Zheng et al., 2021 (DistDGL)"
CLUSTER = "Chiang et al., KDD 2019 (Cluster-GCN)"
SAINT = "Zeng et al., ICLR 2020 (GraphSAINT)"
LABOR = "Balın & Çatalyürek, NeurIPS 2023"
SALIENT = "Kaler et al., MLSys 2023 (SALIENT++)"
BYTEGNN = "Zheng et al., PVLDB 2022 (ByteGNN)"

PAPERS: dict[tuple[str, str], str] = {
    ("partitioner", "metis"): "Karypis & Kumar, SISC 1998",
    ("partitioner", "bytegnn"): BYTEGNN,
    ("partitioner", "ldg"): "Stanton & Kliot, KDD 2012",
    ("plan", "block"): CAGNET,
    ("plan", "halo"): SYLVIE,
    ("plan", "prepost"): SUPERGCN,
    ("plan", "drawn"): BNS,
    ("policy", "always"): CAGNET,
    ("policy", "epoch-fixed"): f"{SANCUS}, Definition 1",
    ("policy", "epoch-adaptive"): f"{SANCUS}, Definition 2",
    ("policy", "variation-gap"): f"{SANCUS}, Definition 3",
    ("policy", "pipelined"): PIPEGCN,
    ("policy", "periodic"): f"{DIGEST}, §3.2",
    ("policy", "drop"): LLCG,
    ("codec", "int2"): SUPERGCN,
    ("codec", "int1"): SYLVIE,
    ("codec", "auto"): ADAQP,
    ("parameter-codec", "int1"): SEIDE,
    ("parameter-codec", "low-rank"): POWERSGD,
    ("sampler", "neighbour"): "Hamilton et al., NeurIPS 2017",
    ("sampler", "labor"): LABOR,
    ("sampler", "cluster"): CLUSTER,
    ("sampler", "saint"): SAINT,
    ("cache", "vip"): SALIENT,
    ("cache", "degree"): "Lin et al., SoCC 2020 (PaGraph)",
    ("model", "gcn"): "Kipf & Welling, ICLR 2017",
    ("model", "sage"): "Hamilton et al., NeurIPS 2017",
    ("model", "gin"): "Xu et al., ICLR 2019",
    ("model", "gat"): "Veličković et al., ICLR 2018",
    ("model", "gatv2"): "Brody et al., ICLR 2022",
    ("model", "gcnii"): "Chen et al., ICML 2020",
    ("model", "resgcn+"): "Li et al., 2020 (DeeperGCN)",
    ("preset", "cagnet"): CAGNET,
    ("preset", "sancus-e"): SANCUS,
    ("preset", "sancus-a"): SANCUS,
    ("preset", "sancus-h"): SANCUS,
    ("preset", "skipg"): SANCUS,
    ("preset", "pipegcn"): PIPEGCN,
    ("preset", "bns"): BNS,
    ("preset", "sylvie-s"): SYLVIE,
    ("preset", "sylvie-a"): SYLVIE,
    ("preset", "supergcn"): SUPERGCN,
    ("preset", "digest"): DIGEST,
    ("preset", "digest-a"): f"{DIGEST}, §4.3",
    ("preset", "gnnpipe"): GNNPIPE,
    ("preset", "partition-only"): LLCG,
    ("preset", "distdgl"): DISTDGL,
    ("preset", "salient++"): SALIENT,
    ("preset", "clustergcn"): CLUSTER,
    ("preset", "graphsaint"): SAINT,
}
