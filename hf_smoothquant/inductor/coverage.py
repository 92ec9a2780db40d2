"""Did every quantized Linear become a fused int8 kernel? Answered from the compiled graphs, not assumed."""

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from transformers.utils import logging

logger = logging.get_logger(__name__)


class FusionCoverage(CustomGraphPass):
    """Inductor pass that changes nothing: it counts the fused int8 products of each graph and names the unfused ones.

    Attributes:
        fused (`int`): number of `onednn.qlinear` calls in all graphs seen.
        unfused (`list[str]`): full names of the quantized Linears that were left as separate operations.
    """

    def __init__(self):
        self.fused = 0
        self.unfused: list[str] = []

    def __call__(self, graph: torch.fx.Graph) -> None:
        unfused = []
        for node in graph.nodes:
            if node.op != "call_function":
                continue
            if node.target is torch.ops.aten._int_mm.default:
                unfused.append(_module_name(node))
            elif str(node.target).startswith("onednn.qlinear_pointwise"):
                self.fused += 1
        if unfused:
            self.unfused.extend(unfused)
            logger.warning(
                f"{len(unfused)} of {len(unfused) + self.fused} quantized Linears did not become a fused int8 kernel and "
                f"will be slow: {', '.join(unfused)}."
            )

    def uuid(self) -> bytes:
        return get_hash_for_files((__file__,))


def _module_name(node: torch.fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(stack.values()), ("unknown",))[0]
    return path.replace("L['self'].", "").replace("._modules['", ".").replace("']", "")
