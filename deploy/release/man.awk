# Turns a page of krater help (COLUMNS=100) into a manual page for man(1).
#   awk -v title=KRATER-SERVE -v version=0.2.0 -v date=2026-01-31 -f man.awk
function esc(s) {
	gsub(/\\/, "\\e", s)
	gsub(/-/, "\\-", s)
	return s
}
function text(s) { # a line of its own must not begin as a request of roff
	s = esc(s)
	return s ~ /^[.']/ ? "\\&" s : s
}
function example(on) {
	if (on != verbatim) print on ? ".PP\n.nf\n.RS 4" : ".RE\n.fi"
	verbatim = on
}
BEGIN { printf ".TH %s 1 %s \"krater %s\" \"Krater\"\n", title, date, version }
/^[A-Z][A-Z ]+$/ { example(0); section = $0; print ".SH " section; after = 0; next }
/^$/ { after = 1; next }
/^ [A-Z]/ { print ".SS " text(substr($0, 2)); next }
section == "COMMANDS" && /^  [a-z]/ {
	name = substr($0, 3); sub(/  .*/, "", name)
	help = substr($0, 3 + length(name)); sub(/^ +/, "", help)
	print ".TP\n.B " esc(name) "\n" text(help)
	next
}
section == "OPTIONS" && /^  [^ ]/ { print ".TP\n.B " esc(substr($0, 3)); next }
/^    krater/ { example(1); print text(substr($0, 5)); next }
{
	example(0)
	if (after) print ".PP"
	after = 0
	sub(/^ +/, "")
	print text($0)
}
END { example(0) }
