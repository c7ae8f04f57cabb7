"""How fast scenes are drawn: images a second on one core, planning and drawing together.

Run: python benchmarks/scenes.py [--count 3000] [--sizes 64,128,224] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from clipmend.data.scenes import make_scenes, negation_data, render


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--sizes", default="64,128,224")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    started = time.process_time()
    scenes = make_scenes(arguments.count, 7)
    planned = time.process_time() - started
    results = {"plans_per_second": round(len(scenes) / planned)}
    for size in map(int, arguments.sizes.split(",")):
        started = time.process_time()  # the first drawing of every sprite included
        for scene in scenes:
            render(scene, size)
        taken = time.process_time() - started
        results[f"images_per_second_{size}"] = round(len(scenes) / (taken + planned))
    started = time.process_time()
    data = negation_data(scenes, scenes, 7)
    results["captions_per_second"] = round(len(data.captions) / (time.process_time() - started))
    print(json.dumps(results, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
