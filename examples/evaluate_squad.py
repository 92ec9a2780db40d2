"""SQuAD 1.1: exact match and F1 of a model in fp32, bf16, static and dynamic int8, with confidence intervals.

    python examples/evaluate_squad.py distilbert-base-cased-distilled-squad --compile
    python examples/evaluate_squad.py ./model --data dev-v1.1.json --modes fp32 static --alpha 0.85 auto -o results
    accelerate launch --cpu --num_processes 2 examples/evaluate_squad.py ./model --data dev-v1.1.json
    python examples/evaluate_squad.py --demo     # a tiny random model and four questions, offline

`--help` lists the rest. Needs `pip install -e '.[eval]'`.
"""

from hf_smoothquant.evaluation.command import evaluate_squad, main
from hf_smoothquant.evaluation.demo import squad_demo

if __name__ == "__main__":
    main(evaluate_squad, squad_demo)
