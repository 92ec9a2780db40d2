"""Did every quantized Linear become a fused int8 kernel? Answered from the compiled graphs, not assumed."""

import torch
from transformers.utils import logging

from hf_smoothquant import cpu

logger = logging.get_logger(__name__)


class FusionCoverage:
    """Counts the fused int8 products of the graphs it is shown, and names the unfused ones in a warning.

    Attributes:
        fused (`int`): number of `onednn.qlinear` calls in all graphs seen. A recompilation, for another shape or in
            another thread, counts again.
        unfused (`list[str]`): full names of the quantized Linears that were left as separate operations.
    """

    def __init__(self):
        self.fused = 0
        self.unfused: list[str] = []

    def inspect(self, graph: torch.fx.Graph) -> None:
        """Adds one graph, as Inductor has it after freezing and its fusion patterns.

        Raises:
            `RuntimeError`: an int8 kernel whose sums saturate on this CPU is in it.
        """
        unfused = []
        for node in graph.nodes:
            if node.op != "call_function":
                continue
            if node.target is torch.ops.aten._int_mm.default:
                unfused.append(_module_name(node))
            elif str(node.target).startswith("onednn.qlinear_pointwise"):
                if cpu.SATURATES:
                    raise RuntimeError(
                        f"The product of {_module_name(node)} became an int8 kernel, whose sums saturate on this CPU "
                        "(no VNNI). Call the Linear itself, not torch.nn.functional.linear on its weight."
                    )
                self.fused += 1
        if unfused:
            self.unfused.extend(name for name in unfused if name not in self.unfused)
            logger.warning(
                f"{len(unfused)} quantized Linears did not become a fused int8 kernel and will be slow: "
                f"{', '.join(unfused)}."
            )


def _module_name(node: torch.fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(stack.values()), ("(unknown)",))[0]
    return path.replace("L['self'].", "").replace("._modules['", ".").replace("']", "")
