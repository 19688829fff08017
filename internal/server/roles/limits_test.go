package roles

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/server/config"
)

// TestDocsLimits checks that the errors in docs/reference/limits.md exist in the code, and that it leaves limits with a
// key to the reference of the configuration. If another page has a default in a row with a key, it is the right one.
func TestDocsLimits(t *testing.T) {
	keys := map[string]string{} // their defaults
	for _, s := range config.Keys() {
		keys[s.Key] = fmt.Sprint(s.Value.Interface())
	}
	key := regexp.MustCompile("^`([a-z_]+(?:\\.[a-z_]+)+)`$")
	inQuotes := regexp.MustCompile(`"([^"]+)"`)
	var errors []string
	pages, err := filepath.Glob("../../../docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
			if filepath.Base(page) == "limits.md" && len(cells) > 1 {
				for _, m := range inQuotes.FindAllStringSubmatch(line, -1) {
					errors = append(errors, m[1])
				}
			}
			if len(cells) != 4 {
				continue
			}
			if m := key.FindStringSubmatch(strings.TrimSpace(cells[2])); m != nil {
				want, isKey := keys[m[1]]
				if got := strings.TrimSpace(cells[1]); !isKey || want != "0" && want != "" && got != want {
					t.Errorf("%s says that %s is %s by default, want %q", page, m[1], got, want)
				}
			}
		}
	}
	texts := literals(t)
	for _, want := range errors {
		// Numbers of the page are formatting verbs in the code, and the error can be a part of a longer text.
		words := regexp.MustCompile(strings.ReplaceAll(regexp.QuoteMeta(want), "N", "%[ds]"))
		if !slices.ContainsFunc(texts, func(l literal) bool {
			return l.pattern.MatchString(want) ||
				words.MatchString(l.text)
		}) {
			t.Errorf("docs/reference/limits.md promises the error %q, which nothing in the code says", want)
		}
	}
	if len(errors) < 20 {
		t.Errorf("errors in docs/reference/limits.md = %d, want at least 20", len(errors))
	}
}

// literal is a string in the code, and the texts that it makes: a verb stands for anything.
type literal struct {
	text    string
	pattern *regexp.Regexp
}

// literals are the strings in the code.
func literals(t *testing.T) (list []literal) {
	t.Helper()
	verb := regexp.MustCompile(`%[-+# 0-9.]*[a-zA-Z]`)
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			strings.HasSuffix(path, ".pb.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				text, _ := strconv.Unquote(lit.Value)
				if parts := verb.Split(text, -1); len(strings.Join(parts, "")) >= 10 {
					for i := range parts {
						parts[i] = regexp.QuoteMeta(parts[i])
					}
					list = append(list, literal{text, regexp.MustCompile(strings.Join(parts, ".+"))})
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}
