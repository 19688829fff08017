package roles

import (
	"encoding"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/server/config"
)

// noLimits are numbers and times of the configuration that bound nothing.
var noLimits = map[string]bool{
	"git.nice": true, "git.slow": true, "index.nice": true, "node.weight": true, "storage.socket_mode": true,
	"search.socket_mode": true, "git.threads": true, "git.window": true, "git.shallow_window": true,
	"git.snapshot_window": true, "git.shallow_compression": true,
	"app.slots": true, "app.pool.slots": true, "app.pool.share": true, "app.health_failures": true,
	"app.health_passes": true, "mirror.app_id": true, "mirror.app_installation": true,
}

// TestDocsLimits checks docs/reference/limits.md. It has every limit of the configuration with its default, or another
// page has it in such a table. Every error in it exists in the code.
func TestDocsLimits(t *testing.T) {
	text, err := os.ReadFile("../../../docs/reference/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{} // by key
	key := regexp.MustCompile("^`([a-z_]+(?:\\.[a-z_]+)+)`$")
	says := regexp.MustCompile(`"([^"]+)"`)
	var errors []string
	pages, err := filepath.Glob("../../../docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		own, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(own)) {
			if cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | "); len(cells) == 4 {
				if m := key.FindStringSubmatch(strings.TrimSpace(cells[2])); m != nil {
					rows[m[1]] = strings.TrimSpace(cells[1])
				}
			}
		}
	}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) != 4 {
			continue
		}
		for _, m := range says.FindAllStringSubmatch(cells[3], -1) {
			errors = append(errors, m[1])
		}
	}
	known := map[string]bool{}
	for _, s := range config.Keys() {
		known[s.Key] = true
		_, isText := s.Value.Addr().Interface().(encoding.TextUnmarshaler)
		if !isText && s.Value.Kind() != reflect.Int || noLimits[s.Key] || strings.HasPrefix(s.Key, "sli.") ||
			s.Key == "tracing.callers" ||
			strings.HasPrefix(s.Key, "cgroup.") { // docs/explanation/processes.md has these
			continue
		}
		value, there := rows[s.Key]
		if !there {
			t.Errorf("docs/reference/limits.md and its neighbours have no %s, want it", s.Key)
			continue
		}
		if want := fmt.Sprint(s.Value.Interface()); !s.Value.IsZero() && value != want {
			t.Errorf("docs/reference/limits.md says that %s is %s by default; it is %s", s.Key, value, want)
		}
	}
	for key := range rows {
		if !known[key] {
			t.Errorf("docs/reference/limits.md has %s, want keys of the configuration only", key)
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
