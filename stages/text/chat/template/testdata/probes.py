"""Writes probes.jsonl: small templates with what Jinja2 makes of them.

Python 3 with Jinja2 3.1.6, set up as transformers sets it up for chat
templates. Each line has the template and `expected`, or `error` where Python
raises. The variables are those of VARS in every probe.

    python3 probes.py > probes.jsonl
"""

import datetime
import json

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

VARS = {
    "s": "Hello World", "u": "naïve Straße 日本 😀", "w": "  pad \t\n", "e": "", "q": "it's \"q\"\\\n\u00a0\u200b",
    "csv": "a,b,,c", "lines": "one\ntwo\r\nthree\n", "n": 7, "neg": -7, "z": 0, "f": 2.5, "big": 1e16, "small": 1e-5,
    "huge": 123456789012345678901234567890, "t": True, "no": False, "nil": None,
    "l": [3, 1, 2], "ls": ["b", "A", "c"], "m": {"b": 1, "a": [1.5, None, True], "items": 9, "é<>&'\"": "x\u0001"},
    "rows": [{"k": "x", "v": 2, "d": {"e": 1}}, {"k": "y", "v": 1, "d": {"e": 2}}], "ee": [], "md": {},
    "msgs": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None}],
}

EXPRESSIONS = r"""
s + ' x'|s + 1|1 + 2|1 + 2.0|l + [4]|l + s|nil + s|s + nil|undef + s|s + undef|t + 1|1 - 2|n * 2|s * 2|2 * 'ab'|l * 2|s * -1
n / 2|n // 2|neg // 2|neg % 3|n % -3|f // 1|-2.5 // 1|2.5 % 2|-2.5 % 2|n / 0|n // 0|n % 0|2 ** 10|2 ** -1|2 ** 0.5|(-1) ** 65|2 ** 3 ** 2|-n|+n|-f|-s|+nil|-undef|--n
'%s and %d' % (s, n)|'%s' % l|'%5.1f|' % f|'%05d' % neg|'%-5s|' % 'a'|'%r' % s|'%%' % ()|'%s %s' % s|'%d' % s|'%x' % 255|'%+d' % 3|'%s' % (l,)|'100%' % ()
1 ~ 2|s ~ nil ~ undef ~ t|1 + 2 ~ 3|'a' ~ 1 + 2|l ~ m
s == 'Hello World'|1 == 1.0|1 == true|'1' == 1|nil == none|undef == none|undef == undef2|l == [3, 1, 2]|(1, 2) == [1, 2]|m == {}|s != 'x'
1 < 2|1 < 2 < 3|3 > 2 > 2|'a' < 'b'|1 < 'a'|nil < 1|undef < 1|[1, 2] < [1, 3]|1 <= 1.0|2 >= 3|not 1 == 2|not 1 in l|1 in l|9 not in l|'H' in s|1 in s|nil in s|undef in s|s in nil|s in undef|'b' in m|1 in m|undef in m|undef in l|none in [none]
t and s|no or s|e or nil|not s|not not s|s if t else n|s if no|(s if no) is defined|(s if no) ~ 'x'|1 if 0 else 2 if 0 else 3
s[0]|s[-1]|s[99]|s[1:3]|s[:-1]|s[::-1]|s[::2]|s[5:2]|u[3]|u[-1]|u[4:9]|l[0]|l[-1]|l[9]|l[9].x|l[1:]|l[::-1]|l[5:]|l['x']|m['b']|m.b|m['zz']|m.zz|m.zz.y|m['zz']['y']|m.items() | list|undef.x|undef[0]|undef[1:]|nil.x|nil['x']|nil.x.y|nil[0]|nil[1:]|n.x|m[1:]|s['x']|s.x|s[nil]|l[nil]|l[true]|l[1.0]|s[s]|l[:nil]|l[:'a']|l[::0]|(1, 2)[0]|rows[0].d.e|rows.0.k|m.get('b')|m.get('zz')|m.get('zz', 5)|m.get()|m.keys() | list|m.values() | list|m.copy()
s.upper()|s.lower()|s.title()|"they're bill's".title()|s.capitalize()|s.swapcase()|u.upper()|u.lower()|w.strip()|w.lstrip()|w.rstrip()|s.strip('Hd')|s.lstrip('leH')|s.rstrip('dl')|s.strip(nil)|s.strip(1)|'xxaxx'.strip('x')
csv.split(',')|csv.split(',', 1)|csv.split(',', maxsplit=1)|csv.rsplit(',', 1)|w.split()|s.split()|' a  b c '.split(none, 1)|' a  b c '.rsplit(none, 1)|s.split('')|s.split(1)|e.split()|e.split(',')|lines.splitlines()|lines.splitlines(true)|csv.partition(',')|csv.rpartition(',')|csv.partition('x')|csv.partition('')
s.startswith('Hell')|s.startswith(('x', 'H'))|s.startswith(['H'])|s.startswith('W', 6)|s.startswith(1)|s.endswith('d')|s.endswith('o', 0, 5)|s.find('o')|s.find('o', 5)|s.find('zz')|u.find('日')|s.rfind('o')|s.index('zz')|s.count('l')|s.count('l', 4)|u.count('')|s.startswith('', 99)|s.find('', 11)|s.find('', 12)
s.replace('l', 'L')|s.replace('l', 'L', 1)|s.replace('', '-')|s.replace('l')|s.replace('l', 1)|'-'.join(ls)|'-'.join(l)|', '.join('abc')|s.format(1)|'{} {}'.format(1, s)|'{1} {0}'.format(1, 2)|'{a}'.format(a=3)|'{{}}'.format()|'{'.format()|'{}'.format()
'5'.isdigit()|'a'.isalpha()|'a1'.isalnum()|' '.isspace()|'ab'.islower()|'AB1'.isupper()|''.isdigit()|'a'.center(5)|'ab'.center(5)|'a'.ljust(3) ~ '|'|'a'.rjust(3)|'a'.rjust(3, 'x')|'7'.zfill(3)|'prefix-a'.removeprefix('prefix-')|'a.py'.removesuffix('.py')|s.nosuch()|s.nosuch|l.append(1)|m.update({})|m.pop('b')|l.index(1)|l.count(1)|l.index(77)|nil.strip()|undef.strip()|n.strip()|l.strip()
s | length|l | length|m | length|undef | length|nil | length|n | length|u | length|l | count|s | upper|nil | upper|undef | upper|s | lower|s | title|"they're foo-bar (baz)" | title|'hELLO' | capitalize|w | trim|s | trim('Hd')|s | replace('l', 'L')|s | replace('l', 'L', 1)|n | replace(7, 8)|nil | trim
l | first|l | last|ee | first|ee | last|s | first|s | last|m | first|nil | first|undef | first|l | sort|l | sort(reverse=true)|ls | sort|ls | sort(case_sensitive=true)|rows | sort(attribute='v') | map(attribute='k') | list|[1, 'a'] | sort|l | reverse | list|s | reverse|m | list|s | list|nil | list|undef | list|n | list|l | join|l | join(', ')|ls | join('-')|rows | join(',', attribute='k')|nil | join|undef | join|s | join('.')|m | join(',')
undef | default('d')|nil | default('d')|nil | default('d', true)|e | default('d', boolean=true)|undef | d|undef.x | default('d')|m.zz | default('d')|n | string|l | string|t | string|nil | string|undef | string|s | safe|'<a href="x">' | e|'<' | escape|f | string|big | string|small | string|huge | string|1e22 | string|1.0 | string|100000.0 * 10 ** 11|0.1 + 0.2|1e100
'42' | int|'x' | int|'x' | int(5)|'4.7' | int|4.7 | int|-4.7 | int|'0x1f' | int(0, 16)|nil | int|t | int|undef | int|'3.5' | float|'x' | float|n | float|nil | float|2.5 | round|3.5 | round|2.567 | round(2)|2.1 | round(method='ceil')|2.9 | round(0, 'floor')|42 | round|s | round|neg | abs|-2.5 | abs|s | abs
m | tojson|m | tojson(indent=2)|m | tojson(ensure_ascii=true)|u | tojson|u | tojson(ensure_ascii=true)|q | tojson|l | tojson(separators=(',', ':'))|rows | tojson(sort_keys=true)|ee | tojson(indent=2)|md | tojson(indent=1)|nil | tojson|t | tojson|undef | tojson|[undef] | tojson|big | tojson|huge | tojson|small | tojson|1.0 | tojson|(1, 2) | tojson|'\x7f' | tojson(ensure_ascii=true)|l | tojson(indent='ab')|'<&>' | tojson|l | tojson(indent=0)|rows | tojson(indent=4)
m | items | list|nil | items | list|undef | items | list|l | items | list|m | dictsort|{'b': 1, 'A': 2} | dictsort|{'b': 1, 'A': 2} | dictsort(case_sensitive=true)|{'b': 1, 'A': 2} | dictsort(by='value')|{'b': 1, 'A': 2} | dictsort(reverse=true)|l | dictsort
l | map('string') | list|ls | map('upper') | join|rows | map(attribute='v') | list|rows | map(attribute='d.e') | list|rows | map(attribute='zz', default=0) | list|rows | map(attribute='zz') | list|l | map('nosuch') | list|l | select('odd') | list|l | reject('odd') | list|l | select('gt', 1) | list|[0, 1, nil] | select | list|rows | selectattr('v', 'equalto', 2) | map(attribute='k') | list|rows | rejectattr('v', 'eq', 2) | map(attribute='k') | list|rows | selectattr('zz') | list|rows | selectattr('k', 'in', ['x']) | list | length|rows | selectattr('zz', 'undefined') | list | length|l | select('nosuch') | list|nil | select | list|nil | map('upper') | list|nil | rejectattr('x') | list|0 | selectattr('a') | list|n | select | list|undef | map('upper') | list|nil | sort|nil | unique | list|nil | reverse
l | sum|rows | sum(attribute='v')|l | max|l | min|ls | max|ee | max|ls | unique | list|['a', 'A'] | unique | list|['a', 'A'] | unique(true) | list|l | batch(2) | list|l | batch(2, 'x') | list|[1, 2, 3, 4, 5] | slice(2) | list|[1, 2, 3] | slice(2, 'x') | list|'a b_c d-e' | wordcount|'x' | center(5)|'%s-%s' | format(1, 2)|l | attr('x')|'a\nb\n\nc' | indent|'a\nb' | indent(2, true)|'a\n\nb' | indent(2, blank=true)|'a\nb\n' | indent('> ')|s | nosuch
s is defined|undef is defined|m.zz is defined|undef.x is defined|undef is undefined|nil is none|s is none|s is string|n is string|m is mapping|l is mapping|l is iterable|s is iterable|n is iterable|undef is iterable|nil is iterable|l is sequence|m is sequence|n is sequence|undef is sequence|n is number|t is number|f is number|s is number|huge is number|n is integer|t is integer|huge is integer|f is integer|f is float|n is float|t is boolean|n is boolean|t is true|1 is true|no is false|0 is false|nil is false|n is odd|n is even|s is odd|n is divisibleby 7|n is divisibleby(2)|n is eq 7|n is equalto 8|n is ne 7|n is gt 3|n is lt(3)|n is ge 7|n is le 6|'a' is lt 1|1 is in l|n is sameas 7|t is sameas true|1 is sameas true|s is upper|'AB' is upper|'ab' is lower|range is callable|s is callable|undef is callable|s is not none|not s is none|s is string and t|s is string or no|s is string == true|n is nosuch|n is divisibleby
[1, 'a', nil, t, 2.0, {'k': 'v'}, (1,), (), (1, 2)]|{'a': 1, 'b': [1]}|{1: 'x'}[1]|{}|[]|()|q|[q]|["it's"]|[u]|["it's"] + ['it\'s "x"'] + ['\n\t\\' + '']
['\x00\x7f\x85\xa0\u2028\U0001F600']|'a' 'b'|"a\tb"|'\u00e9'|'\x41\101\q'|1_000|0x1F|0b11|0o17|1.5e3|1e3|.5|true|True|none|None|nil|t
range(3) | list|range(1, 4) | list|range(5, 0, -2) | list|range(0) | list|range(1, 2, 0)|range('a')|range(1000000)|dict(a=1, b=2)|dict({'x': 1}, y=2)|dict([('a', 1)])|namespace(a=1).a|namespace(a=1).b|namespace(a=1).b is defined|strftime_now('%Y-%m-%d %H:%M:%S %a %A %b %B %d %e %j %y %p %I %-d %-m %%')|raise_exception('no ' ~ s)|nosuch()|s()|n.x()|m.b()|cycler('a', 'b').next()|m.zz()
s | upper | lower | length|(s | upper).strip('H')|s.strip() | upper|-1 | abs|-n | abs|n + 1 | string|s | length + 1|s | length > 3|not s | length|[1, 2] | map('string') | join('+')|'a' if s | length else 'b'|(1, 2) | length|l[l | length - 1]|l[-(1)]|m['b' ~ '']|s.split(' ')[-1].upper()[0]|[m, l][0].b|{'a': s.upper()}['a']|'a' in ['a'] and 'b' not in 'abc'|1 + 1 * 2 - 3 / 3|'x' ~ 1 * 2|1 if undef is defined and undef.x else 2
undef.x.y is defined|m.a.b is defined|m.zz.y is defined|(m.zz or {}).y is defined|m['zz'] is defined|m.zz is none|namespace(a=1) is mapping|namespace(a=1) is iterable|namespace(a=none).a is none|namespace(m).b|namespace({'x': 1}, y=2)['y']|namespace() is defined|not namespace()|dict(b=1, a=2) | list|dict(dict(b=1, a=2), c=3) | tojson|namespace(a=1) == namespace(a=1)|namespace(a=1) | tojson
s[-3:]|s[-5:-1]|s[:-99]|s[-99:2]|l[-2:]|l[:-1]|l[-99:99]|l[::-2]|l[-1:0:-1]|l[2:0:-1]|l[1::-1]|u[-2:]|s[1:8:3]|s[8:1:-3]|(1, 2, 3)[::-1]|(1, 2, 3)[1:]|l[0:0]|l[t:]|csv.split(',')[-2:]|ls[1:] + ls[:1]
7 // 2|-7 // 2|7 // -2|-7 // -2|7 % 3|-7 % 3|7 % -3|7.5 // 2|-7.5 // 2|7 / 2|8 / 2|2 ** 3|2 ** -2|0 ** 0|-2 ** 2|7 // 2.0|0.1 * 3|1 - 0.9|1e3 // 7|5 - -3|5 - - - 3|n // 2 * 2 + n % 2|(n / 2) | int|2 * 3 ** 2|10 - 2 - 3|2 / 4 / 2|100 // 7 // 2
1 < n < 10|1 < n > 10|l | length == 3 == 3|'a' < 'b' < 'c' > 'b'|1 in l in [l]|n not in l == false|0 == z == no|undef is defined == no|1 if n > 5 if l|(1 if no else 2 if t else 3)|'a' if undef else 'b' if s else 'c'|[1 if t, 2 if no]|not undef and not no|t and 0 or 'x'|no or nil or e|nil and undef.x|t or undef.x|(t and undef) is defined
huge == huge|huge | int|huge in [huge]|[huge]|{'a': huge}|huge == 1|l is sameas l|ls is sameas l|nil is sameas none|s is in ['Hello World']|n is in l|'x' is not in s|s is filter|'upper' is filter|'odd' is test|'nosuch' is test
range(10)[2:4] | list|range(10)[-1]|range(3) | length|range(4) | sum|range(2, 8, 3) | list|range(3) | reverse | list|3 in range(4)|joiner('-')()|cycler(1, 2).current|cycler()|dict(*[m])|[1, 2] | join(*['-'])|'{}{}'.format(*[1, 2])|'{a}'.format(**{'a': 1})|range(*[1, 4]) | list|'{}'.format(*'ab')|s.replace(*['l', 'L', 1])|dict(**m) == m|range(*5)|dict(**5)
s.split('o', 1)[1]|s.split() | map('length') | list|' x '.strip() ~ '|'|'a-b_c'.replace('-', ' ').replace('_', ' ').title()|'abc'.find('c') + 1|'a,b'.split(',') | last|s.startswith('Hello') and s.endswith('World')|s.lower().split('l')|'\n'.join(ls)|'x'.join([])|'line1\nline2'.splitlines() | length|s.upper().lower() == s|'%s|%s' % (s[:2], l[0])|'<' ~ s ~ '>' == '<%s>' % s|'ab' * n|(ls + l) | length|'abc' | list | reverse | join|s | list | unique | join|l.index(2)|'aXbX'.rsplit('X', 1)|'a'.join('bcd')|'a b'.partition(' ')[2]|e.strip() or 'none'|s.count('o') > 1
m.items() | list | length|m.items() | first | first|m | dictsort | map('first') | list|m.keys() | sort | first|m.values() | first|m | list | last|m.get('a')[0]|m.get('zz', {}).get('y', 'd')|m.a[1]|m['a'][-1]|rows | map(attribute='d') | map(attribute='e') | sum|rows | map(attribute='k') | join('/')|rows | selectattr('k', 'equalto', 'y') | first|(rows | selectattr('v', '>', 1) | list)[0].k|rows | rejectattr('v', 'odd') | list | length|rows | map('tojson') | join('\n')|(rows | sort(attribute='v', reverse=true))[0].k|rows | sum(attribute='v', start=10)|rows | unique(attribute='k') | list | length|msgs | map(attribute='role') | select('equalto', 'user') | list | length|msgs | selectattr('content') | list | length|msgs | selectattr('content', 'none') | list | length|msgs | selectattr('zz', 'defined') | list
{'a': 1, 'a': 2}|{'a': {'b': []}}.a.b|[[1, 2], [3]][0][1]|[l, m] | length|(1,)[0]|(1,) + (2,)|[] == ()|{} == {}|{'a': 1} == {'a': 1.0}|[1, 2] < [1, 2, 3]|(1, 2) < (1, 3)|{'a': 1} < {'b': 1}|[1] in [[1]]|'a' in {'a': 1}|none in [nil]|'' in s|'' in []|l == l | sort|[undef, 1] | select('defined') | list|(1, 2).copy()|(1, 2).count(2)|(1, 2).append(1)|u.swapcase()|undef | attr('x')|m | attr('b')|m | attr('items') is callable|namespace(b=1, a='x')|[namespace()]|'%s' % namespace(a=[1])
"""

TEMPLATES = [
    "{% for x in l %}{{ x }}{% if not loop.last %},{% endif %}{% endfor %}",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }};{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}-{{ loop.nextitem }};{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{% endfor %}",
    "{% for x in ee %}x{% else %}none{% endfor %}", "{% for x in nil %}x{% endfor %}", "{% for x in undef %}x{% else %}e{% endfor %}",
    "{% for x in n %}x{% endfor %}", "{% for c in u %}[{{ c }}]{% endfor %}", "{% for k in m %}{{ k }};{% endfor %}",
    "{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in l %}x{% endfor %}", "{% for a, b, c in [(1, 2, 3)] %}{{ a + b + c }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}x{% endfor %}", "{% for a, b in ['xy'] %}{{ a }}{{ b }}{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}{{ x }}{% endfor %}", "{% for k, v in m.items() if v == 1 %}{{ k }}{{ loop.length }}{% endfor %}",
    "{% for x in l if x > 9 %}x{% else %}none{% endfor %}", "{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x > 4 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in [[1, [2]], [3]] recursive %}{{ x if x is number else loop(x) }}{{ loop.depth }}{% endfor %}",
    "{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% set x = 1 %}{% for y in l %}{% set x = y %}{{ x }}{% endfor %}{{ x }}", "{% set ns = namespace(x=1) %}{% for y in l %}{% set ns.x = ns.x + y %}{% endfor %}{{ ns.x }}",
    "{% set m.x = 1 %}", "{% set undef.x = 1 %}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = [1] %}", "{% set a = 1, 2 %}{{ a }}", "{% set (a, b) = (1, 2) %}{{ b }}",
    "{% set x %}a{{ n }}b{% endset %}[{{ x }}]{{ x | length }}", "{% set x | upper %}a{{ s }}{% endset %}{{ x }}",
    "{% if l and not ee %}y{% elif n %}z{% else %}n{% endif %}", "{% if undef %}y{% else %}n{% endif %}", "{% if undef.x %}y{% endif %}", "{% if nil == none %}a{% endif %}{% if no %}{% elif t %}b{% endif %}",
    "{% macro f(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }}|{{ f(1, 3) }}|{{ f(1, c='y') }}|{{ f() }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=2) }}", "{% macro f() %}{{ caller() }}!{% endmacro %}{% call f() %}hi {{ n }}{% endcall %}",
    "{% macro f() %}{{ caller(1) }}{% endmacro %}{% call(x) f() %}<{{ x }}>{% endcall %}", "{% macro f(n) %}{% if n %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, a=3) }}", "{% macro f(x) %}{{ x | upper }}{% endmacro %}{{ f(s) | lower | length }}{{ f(s) + 'z' }}",
    "{% macro f(x) %}{% set y = x %}{{ y }}{% endmacro %}{{ f(1) }}{{ y is defined }}", "{% set y = 1 %}{% macro f() %}{{ y }}{% endmacro %}{{ f() }}", "{{ f() }}{% macro f() %}x{% endmacro %}",
    "{% filter upper %}a{{ s }}b{% endfilter %}", "{% filter replace('a', 'b') | upper %}aaa{% endfilter %}", "{% raw %}{{ x }}{% if %}{# c #}{% endraw %}!", "a{# c {{ x }} #}b", "{%- raw -%} {{ x }} {%- endraw -%} y",
    "{% generation %}{{ s }}{% endgeneration %}", "a\n{% if t %}\nb\n{% endif %}\nc\n", "  {% if t %}  x{% endif %}  \n  y\n\n", "a\n  {%+ if t %}b{% endif +%}\nc", "a \n\n {{- s -}} \n\n b", "a {%- if t -%} \n b {%- endif %} c",
    "  {# c #}\nx", "x  {# c #}\n  y", "{{ s }}\n{{ n }}\n", "{{ s }}\n\n", "\n{% set x = 1 %}\n\n  {% set y = 2 %}\nz", "a\r\nb\r{% if t %}\r\nc{% endif %}", "{% if t %}\n\n  {{ s }}\n  {% endif %}", "{%- set x = 1 -%}\n  a", "\t{%- if t %}\n\tb\n\t{%- endif %}\n",
    "{ {{ n }} }", "{{ '{{' }}{{ '}}' }}{{ '{%' }}", "{{ {'a': {'b': 1}}['a']['b'] }}", "{{ '}}' }}", "{%if t%}x{%endif%}", "{%-if(t)-%}x{%-endif-%}", "#}{", "{{ 1 }}{", "%}", "{{ s -}}", "a{{+ 1 }}", "{{-1}}", "a {{- -1 }}",
    "{% for m in msgs %}{{ '<|' + m.role + '|>' }}{{ m.content }}{% endfor %}", "{% for m in msgs %}{{ m['role'] + m['content'] }}{% endfor %}", "{{ msgs[0]['content'] | trim }}{{ msgs[2] }}", "{{ msgs[2]['role'] }}",
    "{% for m in msgs %}{% if loop.first and m.role != 'system' %}S{% endif %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}{% endfor %}",
    "{% set x = 1 if t else 2 %}{{ x }}", "{% set x = undef or 'd' %}{{ x }}", "{{ undef }}|{{ nil }}|{{ t }}|{{ m.zz }}", "{% set loop_messages = msgs[1:] %}{{ loop_messages | length }}{{ loop_messages[0].content is none }}",
    "{{ {'a': 1}.items() | list }}", "{{ {'a': 1} | items | list }}", "{{ 'a' if t }}{{ 'b' if no }}", "{% set j = joiner(', ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}",
    "{{ null }}", "{{ null is none }}", "{% if null == none %}a{% else %}b{% endif %}", "{% set x = {'a': null} %}", "{% block b %}x{% endblock %}", "{% set a = [] %}{% set b = a + [1] %}{{ a }}{{ b }}",
    "{% macro f(a=l) %}{{ a }}{% endmacro %}{{ f() }}", "{% for x in l %}{% set y = loop.index %}{% if y == 2 %}{{ y }}{% endif %}{% endfor %}", "{% for x in l -%}\n  {{ x }}\n{%- endfor %}", "{% for r in rows %}{{ r.k }}:{% for k, v in r.d | dictsort %}{{ k }}{{ v }}{% endfor %}{% endfor %}",
    "{% set d = dict(a=1) %}{{ d.a }}{{ d['a'] }}{{ d.get('b', 'x') }}", "{{ s.upper().lower().title() }}", "{{ (l | sort)[0] }}{{ (l | sort | last) }}", "{{ 'x' | default }}{{ '' | default('d', true) }}", "{% set t2 = (1, 2) %}{{ t2 }}{{ t2 + (3,) }}{{ t2 + [3] }}",
]


# Scopes: what a tag assigns is seen behind it or not.
SCOPES = [
    "{% if t %}{% set x = 1 %}{% endif %}{{ x }}", "{% if no %}{% set x = 1 %}{% endif %}{{ x is defined }}", "{% if no %}{% set s = 1 %}{% endif %}{{ s }}", "{% if t %}{% if t %}{% set x = 2 %}{% endif %}{{ x }}{% endif %}{{ x }}",
    "{% set x = 1 %}{% if t %}{% set x = x + 1 %}{% endif %}{{ x }}", "{% set x = 1 %}{% for y in l %}{{ x }}{% set x = x + y %}{{ x }};{% endfor %}{{ x }}", "{% for y in l %}{% set x = y %}{% endfor %}{{ x is defined }}", "{% for y in l %}{{ x is defined }}{% set x = y %}{% endfor %}",
    "{% for y in l %}{% if loop.first %}{% set x = 1 %}{% endif %}{{ x is defined }}{% endfor %}", "{% for y in l %}{% if loop.first %}{% set s = 1 %}{% endif %}{{ s }}{% endfor %}{{ s }}", "{% for s in l %}{{ s }}{% endfor %}{{ s }}", "{% for l in l %}{{ l }}{% endfor %}{{ l }}", "{% for x in l %}{% for x in ls %}{{ x }}{% endfor %}{{ x }}{% endfor %}",
    "{% for x in ee %}{% else %}{% set y = 1 %}{{ y }}{% endfor %}{{ y is defined }}", "{% for x in l %}{% for y in l %}{% set z = x %}{% endfor %}{{ z }}{% endfor %}", "{% for x in l %}{% set l = [] %}{{ x }}{% endfor %}", "{% for x in l if x > n - 5 %}{% set n = 0 %}{{ x }}{% endfor %}",
    "{% macro f() %}{{ y }}{% endmacro %}{% set y = 1 %}{{ f() }}", "{% set y = 1 %}{% macro f() %}{{ y }}{% endmacro %}{% set y = 2 %}{{ f() }}", "{% macro f() %}{% set s = 1 %}{{ s }}{% endmacro %}{{ f() }}{{ s }}", "{% macro f(s) %}{{ s }}{% endmacro %}{{ f() }}|{{ f(2) }}|{{ s }}", "{% for x in l %}{% macro f() %}{{ x }}{% endmacro %}{{ f() }}{% endfor %}{{ f is defined }}",
    "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}G{% endmacro %}{{ f() }}", "{% macro f() %}{% macro g() %}x{% endmacro %}{{ g() }}{% endmacro %}{{ f() }}{{ g is defined }}", "{% for x in l %}{% set ns = namespace(v=x) %}{{ ns.v }}{% endfor %}{{ ns is defined }}", "{% macro f(ns) %}{% set ns.v = 2 %}{% endmacro %}{% set ns = namespace(v=1) %}{{ f(ns) }}{{ ns.v }}",
    "{% set ns = namespace() %}{% for x in l %}{% if x == 1 %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }}{{ ns.other is defined }}", "{% set ns = namespace(a=1) %}{% set ns.a, ns.b = 2, 3 %}{{ ns.a }}{{ ns.b }}", "{% set ns = namespace(i=0) %}{% for x in l if ns.i < 2 %}{% set ns.i = ns.i + 1 %}{{ x }}{% endfor %}", "{% set ns = namespace(i=0) %}{% for x in l if ns.i < 2 %}{% set ns.i = ns.i + 1 %}{{ x }}{{ loop.length }}{% endfor %}",
    "{% set x %}{% set y = 1 %}{{ y }}{% endset %}{{ x }}{{ y is defined }}", "{% filter upper %}{% set y = 1 %}a{% endfilter %}{{ y is defined }}", "{% block b %}{% set y = 1 %}{{ y }}{% endblock %}{{ y is defined }}", "{% set y = 1 %}{% block b %}{{ y }}{% set y = 2 %}{% endblock %}{{ y }}", "{% for x in l %}{% block b %}{{ x is defined }}{% endblock %}{% endfor %}", "{% for x in l %}{% block b scoped %}{{ x }}{% endblock %}{% endfor %}",
    "{% generation %}{% set y = 1 %}{{ y }}{% endgeneration %}{{ y is defined }}", "{% for x in l %}{% generation %}{{ x }}{{ loop.index }}{% endgeneration %}{% endfor %}", "{% set ns = namespace(s=s) %}{% set s = ns.s ~ '!' %}{{ s }}{{ ns.s }}", "{% set a = b = 1 %}", "{% set a, b = b, a %}{{ a is defined }}", "{% set n, z = z, n %}{{ n }}{{ z }}", "{% set (a, (b, c)) = (1, (2, 3)) %}{{ a }}{{ b }}{{ c }}", "{% set a, = [1] %}{{ a }}", "{% set a, b = 'xy' %}{{ b }}{{ a }}",
    "{% set ns = namespace() %}{% set ns.x %}a{{ n }}{% endset %}{{ ns.x }}", "{% set a, b %}xy{% endset %}{{ a }}-{{ b }}", "{% set x | replace('a', 'b') | upper | trim %} aa {% endset %}[{{ x }}]", "{% set nil.x = 1 %}", "{% set d = {'a': 1} %}{% set d.a = 2 %}", "{% set ns = namespace(a=1) %}{% set ns['a'] = 2 %}", "{% set true = 1 %}", "{% set ns = namespace(l=[]) %}{% for x in l %}{% set ns.l = ns.l + [x * 2] %}{% endfor %}{{ ns.l }}", "{% set ns = namespace(x=namespace(y=1)) %}{{ ns.x.y }}",
]

# Loops, macros, call blocks.
LOOPS = [
    "{% for i, (k, v) in [(1, ('a', 'b'))] %}{{ i }}{{ k }}{{ v }}{% endfor %}", "{% for (k, v) in m.items() %}{{ k }}{% endfor %}", "{% for a, b, c in [(1, 2, 3)] if b == 2 %}{{ c }}{% endfor %}", "{% for a, b in [[1, 2], [3]] %}{{ a }}{{ b }}{% endfor %}", "{% for x in l if x %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{{ loop.nextitem }};{% endfor %}", "{% for x in [0, 1, 0, 2] if x %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}{{ loop.revindex }}{{ loop.last }};{% endfor %}",
    "{% for x in l %}{% break %}{% else %}none{% endfor %}", "{% for x in l %}{% continue %}{% else %}none{% endfor %}", "{% for x in l %}{% if loop.last %}{% break %}{% endif %}{{ x }}{% else %}none{% endfor %}", "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ loop.index }}{{ x }}{% endfor %}", "{% for x in l %}{% for y in l %}{% if y == 1 %}{% break %}{% endif %}{{ y }}{% endfor %}{{ x }}{% endfor %}", "{% for x in l %}{% for y in l %}{% if y == 1 %}{% continue %}{% endif %}{{ x }}{{ y }}{% endfor %};{% endfor %}",
    "{% for x in rows recursive %}{{ x.k }}{% if x.c %}({{ loop(x.c) }}){% endif %}{% endfor %}", "{% for x in [{'k': 1, 'c': [{'k': 2, 'c': [{'k': 3}]}, {'k': 4}]}] recursive %}{{ loop.depth0 }}{{ x.k }}{% if x.c %}[{{ loop(x.c) }}]{% endif %}{% if not loop.last %},{% endif %}{% endfor %}", "{% for x in [[], [1]] recursive %}{{ loop(x) if x is iterable else x }}{% else %}E{% endfor %}", "{% for x in l %}{{ loop(l) }}{% endfor %}",
    "{% for x in l %}{% set outer = loop %}{% for y in ls %}{{ outer.index }}{{ loop.index }};{% endfor %}{% endfor %}", "{% for x in l %}{{ loop.nosuch is defined }}{{ loop['index'] }}{% endfor %}", "{% for x in l %}{{ loop.cycle() }}{% endfor %}", "{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }}{% endfor %}", "{% for x in l %}{{ loop is mapping }}{{ loop is defined }}{{ loop | tojson }}{% endfor %}", "{{ loop is defined }}{% for x in l %}{% endfor %}{{ loop is defined }}", "{{ loop.index }}", "{% for x in s %}{{ loop.last }}{% endfor %}", "{% for x in (1, 2) %}{{ x }}{% endfor %}", "{% for x in 1, 2 %}{{ x }}{% endfor %}", "{% for k in md %}x{% else %}empty{% endfor %}", "{% for x in l | sort | reverse %}{{ x }}{% endfor %}", "{% for x in l[1:] + [9] %}{{ x }}{% endfor %}", "{% for x in range(3) %}{{ loop.first }}{{ loop.last }}{% endfor %}", "{% for m in msgs[::-1] %}{{ loop.revindex0 }}{{ m.role }}{% endfor %}", "{% for x in l if loop.index > 1 %}{{ x }}{% endfor %}", "{% for x in l if y is defined %}{% set y = 1 %}{{ x }}{% endfor %}", "{% for x in l %}{{ x }}{{ ', ' if not loop.last else '.' }}{% endfor %}",
    "{% macro f(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(b=3, a=4) }}", "{% macro f(a, b=n, c) %}{% endmacro %}", "{% macro f(a) %}{{ a is defined }}{% endmacro %}{{ f() }}{{ f(undef) }}{{ f(none) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, a=2) }}", "{% macro f() %}{{ varargs | length }}{{ varargs }}{% endmacro %}{{ f() }}{{ f(1) }}{{ f(1, 2) }}", "{% macro f(a) %}{{ kwargs }}{% endmacro %}{{ f(1, b=2, c=3) }}", "{% macro f() %}{{ kwargs.items() | list }}{% endmacro %}{{ f(b=2, a=1) }}", "{% macro f(a) %}{% endmacro %}{{ f() is string }}{{ f() | length }}", "{% macro f(x) %}{% if x > 0 %}{{ x }},{{ f(x - 1) }}{% else %}end{% endif %}{% endmacro %}{{ f(4) }}", "{% macro f(a='x', b='y') -%}\n  {{ a }}{{ b }}\n{%- endmacro %}[{{ f() }}][{{ f(b='z') }}]", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(*[1]) }}{{ f(**{'a': 2}) }}{{ f(*l) }}", "{% macro f() %}x{% endmacro %}{{ f is callable }}{{ f() ~ f() }}{{ [f(), f()] | join('-') }}", "{% macro f(a) %}{{ a() }}{% endmacro %}{% macro g() %}G{% endmacro %}{{ f(g) }}", "{% macro f() %}a{{ s }}b{% endmacro %}{{ f() | upper }}{% set x = f() %}{{ x[0] }}",
    "{% macro f() %}[{{ caller() }}]{% endmacro %}{% call f() %}a{% call f() %}b{% endcall %}{% endcall %}", "{% macro f() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b=5, c=6) f() %}{{ a }}{{ b }}{{ c }}{% endcall %}", "{% macro f() %}{{ caller is defined }}{% endmacro %}{{ f() }}", "{% macro f() %}x{% endmacro %}{% call f() %}y{% endcall %}", "{% macro f(l) %}{% for x in l %}{{ caller(x) }}{% endfor %}{% endmacro %}{% call(x) f(ls) %}<{{ x }}{{ n }}>{% endcall %}", "{% macro f() %}{% set y = 1 %}{{ caller() }}{% endmacro %}{% call f() %}{{ y is defined }}{% endcall %}", "{% macro f(a) %}{{ a }}{{ caller() }}{% endmacro %}{% set d = {'f': f} %}{% call d.f(1) %}z{% endcall %}", "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}{% call f() %}{% set z = z + 1 %}{{ z }}{% endcall %}{{ z }}", "{% call range(3) %}x{% endcall %}", "{% call undef() %}x{% endcall %}", "{% macro f(caller) %}{{ caller }}{% endmacro %}{{ f(1) }}", "{% macro f(caller=2) %}{{ caller is callable }}{% endmacro %}{{ f() }}{{ f(1) }}{% call f() %}x{% endcall %}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}", "{% set j = joiner() %}{{ j() }}x{{ j() }}y", "{% set c = cycler('odd', 'even') %}{% for x in l %}{{ c.next() }}{% endfor %}",
]

# White space.
SPACES = [
    "{% if t -%}  a  {%- endif %}  b", "a  {{- s -}}  b", "a\n  {{ s }}\n  b", "  {{ s }}", "  {%- if t %} a{% endif %}", "\n\n{% if t %}\n\na\n\n{% endif %}\n\n", "a{% if t %}\nb{% endif %}\nc", "a {% if t %} b {% endif %} c", "   {% if t %}\n   a\n   {% endif %}\n   b", "{% for x in l %}\n{{ x }}\n{% endfor %}\n", "{% for x in l -%}\n{{ x }}\n{%- endfor -%}\n", "  {% for x in l %}  \n  {{ x }}  \n  {% endfor %}  \n", "{%- for x in l %}\n  - {{ x }}\n{%- endfor %}\n", "{{ s }}\n\n{{ n }}", "{{ s -}}\n\n{{- n }}", "{% set x = 1 %}\n{% set y = 2 %}\n{{ x }}\n", "{# a #}\nb\n{# c #}", "a {#- b -#} c", "  {# a #}  b", "{% raw %}\n a \n{% endraw %}\n b", "  {% raw %} a {% endraw %}\n b", "{%+ if t %}a{%+ endif %}", "  {%+ if t %}a{% endif %}", "a{% if t +%}\nb{% endif %}", "{{ '\n' }}{{ 'a\n' }}", "{% macro f() %}\n  a\n{% endmacro %}[{{ f() }}]", "{% set x %}\n a\n{% endset %}[{{ x }}]", "{%- macro f() -%}\n  a\n{%- endmacro -%}\n[{{ f() }}]", "\t{% if t %}\ta{% endif %}\t", "x{%- if t %}\n  y{% endif -%}\n z", "\r\n{% if t %}\r\na\r\n{% endif %}\r\n", "a\n\n\n", "{% filter trim %}\n a \n{% endfilter %}b", "{% generation %}\n a\n{% endgeneration %}\n b", "{% if t %}{% endif %}\n{% if t %}\n{% endif %}\nx", "{%\n  if t\n%}a{%\n  endif\n%}", "{{\n  s\n  | upper\n}}", "{{ {'a':\n1} }}",
]

# What real chat templates do, in words of our own.
CHATS = [
    "{% set sys = namespace(text='') %}{% for m in msgs %}{% if m.role == 'user' and loop.first %}{% set sys.text = m.content %}{% endif %}{% endfor %}<{{ sys.text }}>", "{% if msgs[0].role == 'system' %}{% set start = 1 %}{% else %}{% set start = 0 %}{% endif %}{% for m in msgs[start:] %}{{ m.role }};{% endfor %}", "{% if msgs[0]['role'] == 'system' %}{% set head = msgs[0]['content'] %}{% set rest = msgs[1:] %}{% else %}{% set head = 'default' %}{% set rest = msgs %}{% endif %}{{ head }}{{ rest | length }}",
    "{% set ns = namespace(last=-1, multi=true) %}{% for m in msgs[::-1] %}{% set i = (msgs | length - 1) - loop.index0 %}{% if ns.multi and m.role == 'user' and m.content is string and not (m.content.startswith('<r>') and m.content.endswith('</r>')) %}{% set ns.multi = false %}{% set ns.last = i %}{% endif %}{% endfor %}{{ ns.last }}", "{% set c = '<think>a\nb</think>\n\nc' %}{% if '</think>' in c %}{{ c.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') }}|{{ c.split('</think>')[-1].lstrip('\n') }}{% endif %}", "{% for m in msgs %}{% if m.content is none %}-{% elif m.content is string %}{{ m.content | trim }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}",
    "{% macro show(c, deep=0) %}{% if c is mapping %}{% for k, v in c | items %}{{ '  ' * deep }}{{ k }}: {{ show(v, deep + 1) }}{% endfor %}{% elif c is iterable and c is not string %}{% for v in c %}{{ show(v, deep) }},{% endfor %}{% else %}{{ c }}{% endif %}{% endmacro %}{{ show(rows) }}", "{% macro type_of(p) %}{% if p is string %}string{% elif p is boolean %}bool{% elif p is number %}{{ 'int' if p is integer else 'float' }}{% elif p is none %}null{% elif p is mapping %}{ {%- for k, v in p | dictsort %} {{ k }}: {{ type_of(v) }},{% endfor %} }{% else %}({{ p | map('string') | join(' | ') }}){% endif %}{% endmacro %}{{ type_of({'b': 1.5, 'a': {'x': none, 'y': [1, 'z']}, 't': true}) }}",
    "{% for m in msgs %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate') }}{% endif %}[{{ m.role }}]{% endfor %}", "{{ raise_exception('a' ~ 1) if msgs | length > 1 else 'ok' }}", "{% if tools is defined and tools %}T{% elif tools is not defined %}N{% endif %}", "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{{ add_generation_prompt }}", "{% set flag = flag | default(true) %}{% set mode = mode if mode is defined else 'auto' %}{{ flag }}{{ mode }}", "{{ strftime_now('%d %B %Y') if strftime_now is defined else 'x' }}", "{%- set date = date_string | default(strftime_now('%d %b %Y'), true) -%}\n{{ date }}",
    "{% set tools = [{'type': 'function', 'function': {'name': 'f', 'parameters': {'type': 'object', 'properties': {'a': {'type': 'string'}}}}}] %}{% for t in tools %}{{ t | tojson(indent=2) }}{{ '\n' if not loop.last }}{% endfor %}{{ tools | map(attribute='function') | map(attribute='name') | list }}", "{% set call = {'name': 'f', 'arguments': {'x': 1, 'y': 'z\"'}} %}{{ '{\"name\": ' ~ call.name | tojson ~ ', \"arguments\": ' ~ call.arguments | tojson ~ '}' }}{% for k, v in call.arguments.items() %}<{{ k }}>{{ v if v is string else v | tojson }}</{{ k }}>{% endfor %}", "{% set args = '{\"a\": 1}' %}{{ args if args is string else args | tojson }}", "{{ bos_token | default('') }}{% for m in msgs if m.role != 'system' %}{{ '<|' ~ m.role ~ '|>\n' ~ (m.content or '') ~ '<|end|>' }}{% if loop.last %}{{ eos }}{% endif %}{% endfor %}",
    "{% set u = namespace(n=0) %}{% for m in msgs %}{% set u.n = u.n + (1 if m.role == 'user' else 0) %}{% endfor %}{{ u.n }}/{{ msgs | selectattr('role', 'equalto', 'user') | list | length }}", "{% for m in msgs %}{% set prev = loop.previtem.role if loop.previtem is defined else 'none' %}{% set next = loop.nextitem.role if not loop.last else 'end' %}{{ prev }}<{{ m.role }}>{{ next }};{% endfor %}", "{% for m in msgs %}{% set content = m.content if m.content is not none else '' %}{% set text = '' %}{% if content %}{% set text = content | upper %}{% endif %}{{ text }}.{% endfor %}", "{% set ids = [] %}{% for m in msgs %}{% set ids = ids + [loop.index] %}{% endfor %}{{ ids }}", "{% for m in msgs %}{{ m.get('name', 'anon') }}{{ m.tool_calls is defined and m.tool_calls }}{{ 'tool_calls' in m }}{{ m.tool_calls | default([]) | length }}{% endfor %}", "{% set v = {'low': 1, 'high': 2} %}{{ v[effort | default('low')] }}{{ v.get(effort, 0) }}{% if effort in v %}x{% endif %}", "{%- for m in msgs %}\n    {%- if m.role == 'user' %}\n        {{- 'U: ' + m.content + '\\n' }}\n    {%- elif m.role == 'assistant' %}\n        {{- 'A: ' }}\n        {%- generation %}\n        {{- (m.content or '') ~ eos }}\n        {%- endgeneration %}\n    {%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt | default(true) %}\n    {{- 'A:' }}\n{%- endif %}",
]


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def split(line):
    """Cuts a line at the bars outside of quotes that have no space at a side."""
    start, quote = 0, ""
    for i, c in enumerate(line):
        if c in "'\"" and line[i - 1] != "\\":
            quote = c if not quote else "" if quote == c else quote
        if c == "|" and not quote and line[i - 1] != " ":
            yield line[start:i]
            start = i + 1
    yield line[start:]


def environment():
    """The environment of transformers' chat templates, at a fixed time."""
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    now = datetime.datetime(2026, 11, 27, 12, 0)
    env.globals["strftime_now"] = lambda f: now.strftime(f)
    return env


def main():
    print(json.dumps({"vars": VARS}, ensure_ascii=False))
    probes = TEMPLATES + SCOPES + LOOPS + SPACES + CHATS
    for line in EXPRESSIONS.strip().split("\n"):
        probes += ["{{ " + p + " }}" for p in split(line)]
    env = environment()
    for probe in probes:
        out = {"template": probe}
        try:
            out["expected"] = env.from_string(probe).render(**json.loads(json.dumps(VARS)))
        except Exception as error:
            out["error"] = f"{type(error).__name__}: {error}"
        print(json.dumps(out, ensure_ascii=False))


if __name__ == "__main__":
    main()
