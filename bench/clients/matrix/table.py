"""Writes the table of docs/clients.md from the lines CELL {...} of standard input.

The status is 1 if a feature failed. With --write FILE it puts the table between the two marks there.
"""
import json
import sys

FEATURES = ["plain", "stream", "multi-turn", "tools", "parallel tools", "JSON schema", "reasoning", "cancel", "usage"]
BEGIN, END = "<!-- table: make clients -->\n", "<!-- end -->\n"


def table(cells):
    lines = ["| client | version | " + " | ".join(FEATURES) + " | more |", "|---" * (len(FEATURES) + 3) + "|"]
    for client in dict.fromkeys(c["client"] for c in cells):
        own = {c["feature"]: c["result"] for c in cells if c["client"] == client}
        version = next(c["version"] for c in cells if c["client"] == client)
        more = ", ".join(f"{f} {r}" for f, r in own.items() if f not in FEATURES)
        lines.append(f"| {client} | {version} | " + " | ".join(own.get(f, "–") for f in FEATURES) + f" | {more} |")
    return "\n".join(lines) + "\n"


def main():
    cells = [json.loads(line.split("CELL ", 1)[1]) for line in sys.stdin if line.startswith("CELL ")]
    text = table(cells)
    print(text, end="")
    if sys.argv[1:2] == ["--write"]:
        with open(sys.argv[2], encoding="utf-8") as f:
            page = f.read()
        head, tail = page.split(BEGIN)[0], page.split(END)[1]
        with open(sys.argv[2], "w", encoding="utf-8") as f:
            f.write(head + BEGIN + text + END + tail)
    failed = [c for c in cells if c["result"] == "failed"]
    for c in failed:
        print(f"{c['client']}, {c['feature']}: {c.get('note', '')}", file=sys.stderr)
    sys.exit(1 if failed or not cells else 0)


main()
