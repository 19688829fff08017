package worker

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sourcegraph/zoekt"
)

func findCtags(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"universal-ctags", "ctags-universal"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("CI") != "" {
		t.Fatal("there is no universal-ctags; install it")
	}
	t.Skip("*** There is no universal-ctags: symbols are NOT looked for. ***")
	return ""
}

func TestSymbols(t *testing.T) {
	t.Parallel()
	s := newSymbols(findCtags(t))
	defer s.close()
	for _, test := range []struct{ name, content, want string }{
		{"a.go", "package main\n\ntype T struct{ x, y int }\n\nfunc (t *T) Hello() {}\n", "main T x y Hello"},
		{"b\n\xff.py", "class A:\n  def f(self): pass\n\xff\xfe\n", "A f"},
		{"empty.go", "", ""},
		{"binary.go", "package main\x00", ""},
		{"data.json", `{"Hello": {"main": 1}}`, ""},
		{"data.YAML", "Hello:\n  main: 1\n", ""},
		{"long.c", "int " + strings.Repeat("a", 400_000) + ";\nint b;\n", "b"},
	} {
		doc := zoekt.Document{Name: "some/where/" + test.name, Content: []byte(test.content)}
		s.add(&doc)
		var names []string
		end := uint32(0)
		for i, section := range doc.Symbols {
			name := test.content[section.Start:section.End]
			if section.Start < end || doc.SymbolsMetaData[i].Sym != name {
				t.Errorf("%s: %q is at %v", test.name, doc.SymbolsMetaData[i].Sym, section)
			}
			end = section.End
			if len(name) < 100 {
				names = append(names, name)
			}
		}
		if got := strings.Join(names, " "); got != test.want || doc.Symbols == nil {
			t.Errorf("%q has the symbols %s; want %s", test.name, got, test.want)
		}
	}
}
