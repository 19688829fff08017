package e2e

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

const manyMB = 640 << 20

// TestHostileLines sends very many and very long lines. The server responds with a clear error, and needs no more
// memory than the limits of request bodies allow (threats: protocol denial of service).
func TestHostileLines(t *testing.T) {
	t.Parallel()
	v := attack(t, "", nil)
	tip := v.idOf("good", "main")
	old := v.idOf("good", "old~1")
	million, hundredThousand := scaled(1_000_000), scaled(100_000)
	have := func(i int) string { return "have " + fakeID(i) }
	for _, test := range []struct {
		name string
		body []byte
		says string // "": a pack
	}{
		{"a-million-haves", join(fetchStart, line("want "+tip), many(million, have), "0009done\n0000"), ""},
		{"too-many-haves", join(fetchStart, line("want "+tip), many(million+1, have), "0000"),
			fmt.Sprintf("more than %d have lines", million)},
		{"duplicate-haves", join(fetchStart, line("want "+tip), many(million, func(int) string { return "have " + old }),
			"0009done\n0000"), ""},
		{"too-many-wants", join(fetchStart, many(million+1, func(int) string { return "want " + tip }), "0009done\n0000"),
			fmt.Sprintf("more than %d want lines", million)},
		{"wants-of-nothing", join(fetchStart, many(hundredThousand/2, func(i int) string { return "want " + fakeID(i) }),
			"0009done\n0000"), "not our ref"},
		{"too-many-shallows",
			join(fetchStart, line("want "+tip), many(hundredThousand+1, func(i int) string { return "shallow " + fakeID(i) }),
				"0009done\n0000"),
			fmt.Sprintf("more than %d shallow lines", hundredThousand)},
		{"many-shallows",
			join(fetchStart, line("want "+tip), many(hundredThousand, func(i int) string { return "shallow " + fakeID(i) }),
				"0009done\n0000"), ""},
		{"too-many-deepen-nots",
			join(fetchStart, line("want "+tip), many(hundredThousand+1, func(int) string { return "deepen-not old" }),
				"0009done\n0000"),
			fmt.Sprintf("more than %d deepen-not lines", hundredThousand)},
		{"many-deepen-nots",
			join(fetchStart, line("want "+tip), many(hundredThousand, func(int) string { return "deepen-not old" }),
				"0009done\n0000"), ""},
		{"unknown-deepen-nots",
			join(fetchStart, line("want "+tip), many(hundredThousand/2,
				func(i int) string { return fmt.Sprint("deepen-not nothing", i) }), "0009done\n0000"),
			"names no ref"},
		{"long-deepen-not", fetching("want "+tip, "deepen-not "+strings.Repeat("a", 65_000), "done"), "names no ref"},
		{"too-many-want-refs", join(fetchStart, many(million+1, func(int) string { return "want-ref refs/heads/main" }),
			"0009done\n0000"),
			fmt.Sprintf("more than %d want-ref lines", million)},
		{"unknown-want-ref", fetching("want-ref refs/heads/none", "done"), "unknown ref"},
		{"long-want-ref", fetching("want-ref refs/heads/"+strings.Repeat("a", 65_000), "done"), "unknown ref"},
		{"odd-want-ref", fetching("want-ref refs/heads/\x00\x01", "done"), "unknown ref"},
		{"want-ref-up", fetching("want-ref refs/../HEAD", "done"), "unknown ref"},
		{"server-options", join("0014command=ls-refs\n", many(1001, func(i int) string { return "server-option=x" }), "0000"),
			"more than 1000 capability lines"},
		{"agents-without-end", join("0014command=ls-refs\n", many(50_000, func(i int) string { return "agent=x" }), "0000"),
			"more than 1000 capability lines"},
		{"long-server-options",
			join("0014command=ls-refs\n", many(1000, func(i int) string {
				return "server-option=" +
					strings.Repeat("x", 65_000)
			}), "0000"), "more than"},
		{"long-command", packets("command="+strings.Repeat("x", 65_000), ""), "unknown command"},
		{"long-capability", packets(strings.Repeat("x", 65_000), ""), "unknown capability"},
		{"two-commands", packets("command=ls-refs", "command=fetch", ""), "already requesting command"},
		{"no-command", packets("agent=x", ""), "no command requested"},
		{"other-format", packets("command=fetch", "object-format=sha256", "|", "done", ""), "mismatched object format"},
		{"unknown-format", packets("command=fetch", "object-format=md5", "|", "done", ""), "unknown object format"},
		{"id-of-another-format", fetching("want "+strings.Repeat("a", 64), "done"), "want"},
		{"id-with-a-NUL", fetching("want "+tip[:39]+"\x00", "done"), "want"},
		{"id-and-more", fetching("want "+tip+" multi_ack", "done"), "want"},
		{"newline-in-a-want", fetching("want "+tip+"\nwant "+tip, "done"), "want"},
		{"depth-and-not", fetching("want "+tip, "deepen 1", "deepen-not old", "done"), "cannot be used together"},
		{"negative-depth", fetching("want "+tip, "deepen -1", "done"), "bad deepen"},
		{"huge-depth", fetching("want "+tip, "deepen 99999999999999999999", "done"), "bad deepen"},
		{"huge-since", fetching("want "+tip, "deepen-since 99999999999999999999", "done"), "bad deepen-since"},
		{"negative-since", fetching("want "+tip, "deepen-since -1", "done"), "bad deepen-since"},
		{"argument-for-nobody", fetching("want "+tip, "--upload-pack=touch /tmp/x", "done"), "unexpected line"},
		{"done-with-a-value", fetching("want "+tip, "done now"), "unexpected line"},
		{"nothing-wanted", fetching("wait-for-done", "done"), "wants nothing"},
	} {
		if strings.HasPrefix(test.name, "too-many-") && scaled(1) == 0 {
			continue // scaled numbers of lines are allowed
		}
		v.fresh()
		a := v.post("good", test.name, test.body)
		if test.says == "" {
			v.wantsPack(test.name, a)
		} else {
			v.wantsError(test.name, a, test.says)
		}
		v.took(test.name, manyMB)
	}
	v.unharmed(manyMB)
}

const fetchStart = "0012command=fetch\n0001"

func line(text string) string { return fmt.Sprintf("%04x%s\n", len(text)+5, text) }

// join puts texts and bytes together.
func join(parts ...any) []byte {
	var b bytes.Buffer
	for _, p := range parts {
		switch p := p.(type) {
		case string:
			b.WriteString(p)
		case []byte:
			b.Write(p)
		}
	}
	return b.Bytes()
}

// TestHostilePrefixes: prefixes are a hint. Too many of them, or too long ones, give all refs, as with git.
func TestHostilePrefixes(t *testing.T) {
	t.Parallel()
	v := attack(t, "", nil)
	all := v.post("good", "all", packets("command=ls-refs", "|", ""))
	ls := "0014command=ls-refs\n0001"
	for name, body := range map[string][]byte{
		"many": join(ls, many(100_000, func(i int) string { return fmt.Sprintf("ref-prefix refs/none/%d", i) }),
			"0000"),
		"a-million": join(ls, many(max(scaled(1_000_000), 70_000),
			func(i int) string { return fmt.Sprintf("ref-prefix refs/none/%d", i) }), "0000"),
		"equal":      join(ls, many(100_000, func(i int) string { return "ref-prefix refs/heads/main" }), "0000"),
		"long":       join(ls, line("ref-prefix "+strings.Repeat("r", 65_000)), "0000"),
		"long-total": join(ls, many(1000, func(i int) string { return "ref-prefix " + strings.Repeat("r", 4000) }), "0000"),
	} {
		v.fresh()
		if a := v.post("good", name, body); a.err != nil || a.status != 200 || a.body != all.body {
			t.Errorf("%s: got %d %v %.300q, want 200 and all refs", name, a.status, a.err, a.body)
		}
		v.took(name, manyMB)
	}
	nested := join(ls, many(60_000, func(i int) string { return "ref-prefix " + strings.Repeat("r", i%15+1) }), "0000")
	if a := v.post("good", "nested", nested); a.err != nil || strings.Count(a.body, "refs/heads/main") != 1 {
		t.Errorf("prefixes of one another: %d %v %.300q", a.status, a.err, a.body)
	}
	v.unharmed(manyMB)
}

// TestHostileFilters: nested, long and odd filters.
func TestHostileFilters(t *testing.T) {
	t.Parallel()
	v := attack(t, "", nil)
	tip := v.idOf("good", "main")
	nest := func(n int) string {
		filter := "blob:none"
		for range n {
			filter = "combine:" + strings.NewReplacer("%", "%25", "+", "%2b").Replace(filter)
		}
		return filter
	}
	sum := func(n int, member string) string {
		return "combine:" + strings.TrimSuffix(strings.Repeat(member+"+", n), "+")
	}
	for name, test := range map[string]struct{ filter, says string }{
		"deep":             {nest(9), "nested more than 8 deep"},
		"deep-and-allowed": {nest(8), ""},
		"without-end":      {strings.Repeat("combine:", 500), "nested more than 8 deep"},
		"wide":             {sum(65, "tree:1"), "more than 64 filters"},
		"wide-and-allowed": {sum(64, "tree:1"), ""},
		"long":             {"blob:limit=" + strings.Repeat("0", 5000), "longer than 4096 bytes"},
		"percents":         {"combine:" + strings.Repeat("%25", 1000) + "tree:1", "filter"},
		"empty-members":    {"combine:++++", "filter"},
		"nothing":          {"combine:", "expected something after combine:"},
		"unescaped":        {"combine:tree:1+blob:none --all", "must escape"},
		"option":           {"--output=/tmp/x", "filter"},
		"newline":          {"blob:none\n--all", "filter"},
		"NUL":              {"blob:none\x00", "filter"},
		"huge-number":      {"blob:limit=99999999999999999999g", "filter"},
		"negative":         {"tree:-1", "filter"},
		"path":             {"sparse:path=/etc/passwd", "no longer supported"},
		"sparse-up":        {"sparse:oid=main:../../etc/passwd", ""},
		"sparse-option":    {"sparse:oid=--all", ""},
		"sparse-expr":      {"sparse:oid=main^{/fix nasty}:x", ""},
		"object-type":      {"object:type=everything", "filter"},
	} {
		a := v.post("good", name, fetching("want "+tip, "filter "+test.filter, "done"))
		switch {
		case strings.HasPrefix(name, "sparse"):
			v.wantsError(name, a, "sparse")
		case test.says == "":
			v.wantsPack(name, a)
		default:
			v.wantsError(name, a, test.says)
		}
	}
	v.unharmed(manyMB)
}

// TestHostileFraming sends invalid and incomplete sequences of pkt-lines.
func TestHostileFraming(t *testing.T) {
	t.Parallel()
	v := attack(t, "", nil)
	tip := v.idOf("good", "main")
	whole := string(fetching("want "+tip, "done"))
	const early = "ends early or is not a pkt-line stream"
	for name, test := range map[string]struct{ body, says string }{
		"length-three":        {"0003", early},
		"length-too-great":    {"fff1" + strings.Repeat("x", 70_000), early},
		"length-ffff":         {"ffff" + strings.Repeat("x", 70_000), early},
		"length-of-nothing":   {fetchStart + "0004" + "0000", "unexpected line"},
		"no-number":           {"zzzz", early},
		"signed":              {"+014command=ls-refs\n0000", early},
		"spaces":              {"  14command=ls-refs\n0000", early},
		"prefix":              {"0x14command=ls-refs\n0000", early},
		"NULs":                {"\x00\x00\x00\x00", early},
		"half-a-length":       {"00", early},
		"delimiter-first":     {"0001", "no command requested"},
		"response-end-first":  {"0002", "unexpected response-end"},
		"delimiters":          {fetchStart + strings.Repeat("0001", 100_000), "unexpected delim"},
		"response-ends":       {fetchStart + "0002" + "0000", "unexpected response-end"},
		"no-flush":            {strings.TrimSuffix(whole, "0000"), early},
		"no-delimiter":        {strings.Replace(whole, "0001", "", 1), "unknown capability"},
		"cut-in-a-line":       {whole[:len(whole)-20], early},
		"a-giant-and-no-more": {fetchStart + "fff0want", early},
		"v0-request": {line("want "+tip+" multi_ack_detailed side-band-64k") + "00000009done\n",
			"unknown capability"},
		"HTTP":            {"GET / HTTP/1.1\r\n\r\n", early},
		"a-NUL-in-a-line": {fetchStart + line("want "+tip+"\x00agent=x") + "0000", "want"},
		"a-line-of-65516": {fetchStart + "fff0" + strings.Repeat("x", 65516) + "0000", "unexpected line"},
	} {
		v.wantsError(name, v.post("good", name, []byte(test.body)), test.says)
	}
	// Lengths in upper case are valid. The server ignores bytes after the request, within the limit.
	v.wantsPack("upper", v.post("good", "upper", []byte("001Aagent=abcdefghijklmno\n"+whole)))
	v.wantsPack("behind", v.post("good", "behind", []byte(whole+strings.Repeat("0000", 100_000))))
	v.wantsError("behind-and-long", v.post("good", "behind-and-long", append([]byte(whole), make([]byte, 64<<20)...)),
		"longer than 67108864 bytes")
	// A request of nothing is one.
	for name, body := range map[string]string{"flush": "0000", "empty": "", "flushes": strings.Repeat("0000", 100_000)} {
		if a := v.post("good", name, []byte(body)); a.err != nil || a.status != 200 || a.body != "" {
			t.Errorf("%s: got %d %v %.300q, want 200 and an empty body", name, a.status, a.err, a.body)
		}
	}
	v.unharmed(manyMB)
}
