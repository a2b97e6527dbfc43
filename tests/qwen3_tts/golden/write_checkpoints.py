"""Write the tiny checkpoints of all golden cases, one folder a case. Runs where Duplex is installed:

python write_checkpoints.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from golden_cases import CASES

from duplex.adapters.qwen3_tts.tiny import write_tiny_checkpoint

for case in CASES:
    folder = Path(sys.argv[1]) / case.name
    write_tiny_checkpoint(folder, case.model_type, case.size, case.seed, end_gain=case.end_gain)
    print(folder)
