package config

import (
	"flag"
	"fmt"
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the generated documentation anew")

// TestDocsConfig holds docs/reference/config.md to the comments on Config's fields.
func TestDocsConfig(t *testing.T) {
	const page = "../../docs/reference/config.md"
	want := configPage(t)
	if *update {
		if err := os.MkdirAll(filepath.Dir(page), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, err := os.ReadFile(page); err != nil || string(got) != want {
		t.Errorf("docs/reference/config.md is not what the comments in internal/config say (%v); run \"make docs\"", err)
	}
}

// configPage renders the page: for each table what it is about, and for each key its type, default, flag and meaning.
func configPage(t *testing.T) string {
	structs := configStructs(t)
	values := map[string]Setting{}
	for _, s := range Keys() {
		values[s.Key] = s
	}
	flags := map[string]string{"cache.enabled": "--no-cache"}
	for _, f := range configFlags {
		flags[f.key] = "--" + f.flag
	}

	var out strings.Builder
	out.WriteString(configIntroduction)
	var write func(typeName, prefix string)
	write = func(typeName, prefix string) {
		decl := structs[typeName]
		for _, field := range decl.Specs[0].(*ast.TypeSpec).Type.(*ast.StructType).Fields.List {
			key := prefix + reflect.StructTag(strings.Trim(field.Tag.Value, "`")).Get("toml")
			heading, typ := "["+key+"]", field.Type
			if array, ok := typ.(*ast.ArrayType); ok {
				heading, typ = "["+heading+"]", array.Elt
			}
			name := typ.(*ast.Ident).Name
			if sub, nested := structs[name]; nested {
				about := strings.TrimPrefix(oneLine(sub.Doc.Text()), name+" ")
				about = strings.TrimPrefix(strings.TrimPrefix(about, "is "), "are ")
				fmt.Fprintf(&out, "\n## %s\n%s%s\n\n", heading, strings.ToUpper(about[:1]), about[1:])
				write(name, key+".")
				continue
			}
			if field.Doc == nil {
				t.Fatalf("the field of %s has no comment", key)
			}
			s, ok := values[key]
			if !ok {
				t.Fatalf("%s is in the source and not in the struct", key)
			}
			about := "default `" + s.TOML() + "`"
			if f, ok := flags[key]; ok {
				about += ", flag `" + f + "`"
			}
			fmt.Fprintf(&out, "- **`%s`** (%s): %s\n", strings.TrimPrefix(key, prefix), about, oneLine(field.Doc.Text()))
		}
	}
	write("Config", "")
	return out.String()
}

// configStructs are the types with keys.
func configStructs(t *testing.T) map[string]*ast.GenDecl {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	structs := map[string]*ast.GenDecl{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE {
				continue
			}
			spec := g.Specs[0].(*ast.TypeSpec)
			if s, ok := spec.Type.(*ast.StructType); ok && s.Fields.NumFields() > 0 && s.Fields.List[0].Tag != nil && strings.Contains(s.Fields.List[0].Tag.Value, "toml") {
				structs[spec.Name.Name] = g
			}
		}
	}
	return structs
}

func oneLine(doc string) string {
	var p comment.Parser
	return strings.Join(strings.Fields(string((&comment.Printer{TextWidth: -1}).Text(p.Parse(doc)))), " ")
}

const configIntroduction = `# Configuration

<!-- Written by "make docs" from the comments in internal/config. -->

One TOML file, named with ` + "`--config FILE`" + `; flags go over it, and what neither says has its default. A key that does not exist is an
error. ` + "`packhorse config check FILE`" + ` reports every mistake in a file with its line, and warns of certificates that expire, webhooks that cannot be
delivered and patterns that match no repository (` + "`--json`" + ` for programs). A server that does not start says the same. ` + "`packhorse config show`" + ` prints the values
that hold and where each came from, as a file to start from. One file does for all roles: each takes what concerns it.

SIGHUP makes a running server read the file again. Nodes, routes, rules, the application's workers, pools and patterns, and the log's level change at once; the log names what needs a restart, and a
file that the server would not start with changes nothing. The content of TLS and secret files needs no signal.

Durations are strings like "500ms", "30s", "5m"; sizes are numbers of bytes or strings like "64KiB", "10GiB".

`
