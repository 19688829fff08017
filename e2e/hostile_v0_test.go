package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// postV0 sends the body of a request of version 0.
func (v *victim) postV0(repo, agent string, body []byte) answered {
	v.t.Helper()
	return v.send(strings.NewReader(v0Head(repo, agent, len(body))), bytes.NewReader(body))
}

// TestHostileV0: what TestHostileLines and TestHostileFraming try, in versions 0 and 1.
func TestHostileV0(t *testing.T) {
	t.Parallel()
	v := attack(t, "", nil)
	tip, old := v.idOf("good", "main"), v.idOf("good", "old~1")
	want := line("want " + tip + " multi_ack_detailed no-done side-band-64k thin-pack ofs-delta")
	million, hundredThousand := scaled(1_000_000), scaled(100_000)
	have := func(i int) string { return "have " + fakeID(i) }
	const early = "ends early or is not a pkt-line stream"
	for _, test := range []struct {
		name string
		body []byte
		says string // "": an answer without an error
	}{
		{"a-million-haves", join(want, "0000", many(million, have), "0009done\n"), ""},
		{"too-many-haves", join(want, "0000", many(million+1, have), "0000"),
			fmt.Sprintf("more than %d have lines", million)},
		{"duplicate-haves", join(want, "0000", many(million, func(int) string { return "have " + old }), "0009done\n"), ""},
		{"too-many-wants", join(want, many(million, func(int) string { return "want " + tip }), "0000", "0009done\n"),
			fmt.Sprintf("more than %d want lines", million)},
		{"wants-of-nothing", join(want, many(hundredThousand/2, func(i int) string { return "want " + fakeID(i) }), "0000",
			"0009done\n"), "not our ref"},
		{"too-many-shallows", join(want, many(hundredThousand+1, func(i int) string { return "shallow " + fakeID(i) }),
			"0000", "0009done\n"),
			fmt.Sprintf("more than %d shallow lines", hundredThousand)},
		{"too-many-nots", join(want, many(hundredThousand+1, func(int) string { return "deepen-not old" }), "0000",
			"0009done\n"),
			fmt.Sprintf("more than %d deepen-not lines", hundredThousand)},
		{"flushes-first", []byte(strings.Repeat("0000", 100_000)), ""},
		{"flushes", join(want, strings.Repeat("0000", million), "0009done\n"), ""},
		{"delimiters", join(want, strings.Repeat("0001", million), "0009done\n"), ""},
		{"rounds-without-end", join(want, "0000", bytes.Repeat(join(many(16, have), "0000"), million/17)), ""},
		{"NUL-and-64-KiB", join(line("want "+tip+"\x00"+strings.Repeat("x", 65_000)), "0000", "0009done\n"), ""},
		{"features-of-64-KiB", join(line("want "+tip+strings.Repeat(" x", 32_000)), "0000", "0009done\n"), ""},
		{"agent-of-64-KiB", join(line("want "+tip+" agent="+strings.Repeat("\x01", 65_000)), "0000", "0009done\n"), ""},
		{"features-everywhere",
			join(want, bytes.Repeat([]byte(line("want "+tip+" multi_ack side-band no-done agent=x")), hundredThousand), "0000",
				"0009done\n"), ""},
		{"all-bands-and-acks", join(line("want "+tip+" multi_ack multi_ack_detailed side-band side-band-64k"), "0000",
			"0009done\n"), ""},
		{"no-flush", []byte(want), early},
		{"cut-in-a-line", []byte(want[:30]), early},
		{"length-three", join(want, "0003"), early},
		{"length-too-great", join(want, "ffff", strings.Repeat("x", 70_000)), early},
		{"no-number", []byte("zzzz"), early},
		{"garbage-for-haves", join(want, "0000", line("have nothing"), "0000"), "have"},
		{"option", join(line("--upload-pack=x"), "0000"), "expected to get object ID"},
		{"command", packets("command=fetch", "|", "want "+tip, "done", ""), "expected to get object ID"},
		{"short-want", join(line("want "+tip[:39]), "0000", "0009done\n"), "want"},
		{"want-of-another", join(line("want "+fakeID(1)), "0000", "0009done\n"), "not our ref"},
		{"want-reached-only", join(line("want "+old), "0000", "0009done\n"), ""}, // as with git, where requests have no state
		{"deepen-nothing", join(want, line("deepen 0"), "0000", "0009done\n"), "deepen"},
		{"deepen-huge", join(want, line("deepen 99999999999999999999"), "0000", "0009done\n"), "deepen"},
		{"deepen-twice", join(want, line("deepen 1"), line("deepen-not old"), "0000", "0009done\n"),
			"cannot be used together"},
		{"filter-not-offered", join(want, line("filter tree:1"), "0000", "0009done\n"),
			"filtering capability not negotiated"},
		{"filter-bomb", join(line("want "+tip+" filter"), line("filter "+strings.Repeat("combine:", 500)), "0000",
			"0009done\n"), "filter"},
	} {
		if strings.HasPrefix(test.name, "too-many-") && scaled(1) == 0 {
			continue // scaled numbers of lines are allowed
		}
		v.fresh()
		a := v.postV0("good", test.name, test.body)
		if test.says != "" {
			v.wantsError(test.name, a, test.says)
		} else if a.err != nil || a.status != http.StatusOK || strings.Contains(a.body, "ERR ") {
			t.Errorf("%s: %d (%v) %.300q", test.name, a.status, a.err, a.body)
		}
		v.took(test.name, manyMB)
	}
	for i, version := range []string{
		"version=0", "version=1", "version=3", "version=99999999999", "version=", "version=1:version=0",
		strings.Repeat("version=1:", 6000), "version=1;version=2", "x\ty",
	} {
		agent := fmt.Sprint("version-", i)
		a := v.send(strings.NewReader("GET /good" + discoveryOf + " HTTP/1.1\r\nHost: localhost\r\nUser-Agent: " + agent +
			"\r\nGit-Protocol: " + version + "\r\n\r\n"))
		if a.status != http.StatusOK || !strings.Contains(a.body, "refs/heads/main") &&
			!strings.Contains(a.body, "version 2") {
			t.Errorf("%.40q: %d (%v) %.200q", version, a.status, a.err, a.body)
		}
	}
	v.unharmed(manyMB)
}
