package internal_test

import (
	"cmp"
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
)

// logCalls are the methods of a *slog.Logger, with the index of the message and of the first attribute.
var logCalls = map[string][2]int{
	"Debug": {0, 1}, "Info": {0, 1}, "Warn": {0, 1}, "Error": {0, 1}, "Log": {2, 3}, "LogAttrs": {2, 3},
}

// logHelpers are functions that pass a message on to a log, with the index of the message and of the first attribute.
var logHelpers = map[string][2]int{"NewRecord": {2, 9}, "logChange": {2, 3}, "warn": {0, 9}, "logDiskError": {0, 9}}

// attributeCalls are functions that make an attribute from a name.
var attributeCalls = []string{"String", "Int", "Int64", "Uint64", "Float64", "Bool", "Any", "Duration", "Time"}

// logged collects the messages and the fields of all logs from the source, each with a place where it stands.
func logged(t *testing.T) (messages, fields map[string]string) {
	t.Helper()
	messages, fields = map[string]string{}, map[string]string{}
	files := token.NewFileSet()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == "bench" || path == "git/gittest"): // not a part of a server
			return fs.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				inspectCall(t, files, call, messages, fields)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return messages, fields
}

func inspectCall(t *testing.T, files *token.FileSet, call *ast.CallExpr, messages, fields map[string]string) {
	at := files.Position(call.Pos()).String()
	name, receiver := "", ""
	switch f := call.Fun.(type) {
	case *ast.Ident:
		name = f.Name
	case *ast.SelectorExpr:
		name = f.Sel.Name
		switch x := f.X.(type) {
		case *ast.Ident:
			receiver = x.Name
		case *ast.SelectorExpr:
			receiver = x.Sel.Name
		}
	}
	attribute := receiver == "slog" && slices.Contains(attributeCalls, name) || strings.EqualFold(name, "milliseconds")
	if attribute && len(call.Args) > 0 {
		if key, ok := literal(call.Args[0]); ok {
			fields[key] = at
		}
	}
	index, ok := logCalls[name]
	helper, isHelper := logHelpers[name]
	isHelper = isHelper && (name == "NewRecord" || strings.HasPrefix(at, "gateway/app/"))
	if isHelper {
		index = helper
	} else if !ok || !strings.EqualFold(receiver, "log") {
		return
	}
	if len(call.Args) <= index[0] {
		return
	}
	if message, ok := literal(call.Args[index[0]]); ok {
		messages[message] = at
	} else if _, parameter := call.Args[index[0]].(*ast.Ident); !parameter && !isHelper { // of a helper
		t.Errorf("%s: the message is no constant", at)
	}
	if name == "LogAttrs" || call.Ellipsis.IsValid() {
		return
	}
	for i := index[1]; i < len(call.Args); i += 2 {
		if key, ok := literal(call.Args[i]); ok {
			fields[key] = at
		} else if _, isCall := call.Args[i].(*ast.CallExpr); !isCall && !isHelper {
			t.Errorf("%s: the name of a field is no constant", at)
		}
	}
}

// literal is the value of a constant string.
func literal(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}

// tableRow is a row of a table whose first cell is code.
var tableRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")

// The messages that docs/reference/logs.md explains are logged, and it explains every field of lines about requests.
func TestDocsLogs(t *testing.T) {
	page, err := os.ReadFile("../docs/reference/logs.md")
	if err != nil {
		t.Fatal(err)
	}
	upTo, ofFields, ok := strings.Cut(string(page), "\n## Fields of requests")
	if !ok {
		t.Fatal("docs/reference/logs.md has no part about fields")
	}
	messages, fields := logged(t)
	compareNames(t, "message", upTo, messages, func(string) bool { return false })
	compareNames(t, "field", ofFields, fields, func(at string) bool { return strings.HasPrefix(at, "node/outcome.go:") })
}

// compareNames compares the names on a page with those in the source, of which the page needs those that needs chooses.
func compareNames(t *testing.T, what, page string, inSource map[string]string, needs func(at string) bool) {
	t.Helper()
	described := map[string]bool{}
	for _, m := range tableRow.FindAllStringSubmatch(page, -1) {
		if described[m[1]] {
			t.Errorf("docs/reference/logs.md describes the %s %q twice", what, m[1])
		}
		described[m[1]] = true
		if _, ok := inSource[m[1]]; !ok {
			t.Errorf("docs/reference/logs.md describes the %s %q, which nothing logs", what, m[1])
		}
	}
	missing := []string{}
	for name, at := range inSource {
		if !described[name] && needs(at) {
			missing = append(missing, at+": "+name)
		}
	}
	slices.SortFunc(missing, cmp.Compare[string])
	for _, m := range missing {
		t.Errorf("docs/reference/logs.md does not describe the %s at %s", what, m)
	}
}
