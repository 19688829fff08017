package web

import (
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	"github.com/packhorse-git/packhorse/internal/search"
	"github.com/packhorse-git/packhorse/internal/search/query"
)

func TestMain(m *testing.M) {
	// The clock of regexp2 runs for a while after its last use.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/dlclark/regexp2/v2.runClock"))
}

func TestMarks(t *testing.T) {
	t.Parallel()
	show := func(pieces []page.Piece) (s string) {
		for _, p := range pieces {
			switch {
			case p.Hit:
				s += "[" + p.Text + "]"
			case p.Control:
				s += "(" + p.Text + ")"
			default:
				s += p.Text
			}
		}
		return s
	}
	for _, test := range []struct {
		text   string
		ranges [][2]int
		want   string
	}{
		{"a needle here\r\n", [][2]int{{2, 8}}, "a [needle] here"},
		{"üü needle", [][2]int{{3, 9}}, "üü [needle]"},
		{"ab", [][2]int{{0, 1}, {0, 2}}, "[a][b]"},
		{"ab", [][2]int{{-5, 99}}, "[ab]"},
		{"ab", [][2]int{{2, 1}, {7, 9}}, "ab"},
		{"", [][2]int{{0, 4}}, ""},
		{"a\x00b\u202e", [][2]int{{0, 3}}, "[a](U+0000)[b](U+202E)"},
		{strings.Repeat("x", 100) + "needle" + strings.Repeat("y", 1000), [][2]int{{100, 106}},
			"…" + strings.Repeat("x", leadBytes) + "[needle]" + strings.Repeat("y", shownBytes-leadBytes-6) + "…"},
	} {
		if got := show(marked(test.text, inBytes(test.text, test.ranges))); got != test.want {
			t.Errorf("marked(%.20q) = %q, want %q", test.text, got, test.want)
		}
	}
}

// The examples are valid queries.
func TestExamples(t *testing.T) {
	t.Parallel()
	for _, e := range examples {
		q, err := query.Parse(e.Query)
		if err != nil {
			t.Errorf("%s: %v", e.Query, err)
			continue
		}
		expression := false
		if q.Root != nil {
			q.Root.Atoms(func(n *query.Node) { expression = expression || n.Regexp })
		}
		if strings.Contains(e.Says, "regular expression") && !expression {
			t.Errorf("example %q has no regular expression, but its description mentions one", e.Query)
		}
	}
}

// The notice about files without content is below the results, and absent if there are more results.
func TestNoticeOfFiles(t *testing.T) {
	t.Parallel()
	for limited, want := range map[bool]string{true: "", false: "some files"} {
		f := newFound()
		f.end(search.Summary{Limited: limited, Notices: []search.Notice{{Reason: "files", Message: "some files"},
			{Reason: "filter", Message: "some word"}}})
		if f.Remark != want || len(f.Notes) != 1 || f.Notes[0] != "some word" {
			t.Errorf("limited %v: remark %q and notes %q, want %q and the other notice", limited, f.Remark, f.Notes, want)
		}
	}
}
