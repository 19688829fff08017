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
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the generated documentation")

// TestDocsConfig holds docs/reference/config.md to the comments on Config's fields.
func TestDocsConfig(t *testing.T) {
	const page = "../../../docs/reference/config.md"
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
		t.Errorf("docs/reference/config.md is not what the comments in internal/server/config say (%v); run \"make docs\"",
			err)
	}
}

// configPage renders the page: links to the tables, and for each table its meaning and a row for each key.
func configPage(t *testing.T) string {
	p := &page{t: t, first: map[string]string{}, structs: configStructs(t), values: map[string]Setting{},
		flags: map[string]string{"cache.enabled": "--no-cache"}}
	for _, s := range Keys() {
		p.values[s.Key] = s
	}
	for _, f := range configFlags {
		p.flags[f.key] = "--" + f.flag
	}
	p.table("Config", "")
	return configIntroduction + strings.Join(p.list, "\n") + "\n\n## Top level\n\n" + p.text.String()
}

// page is the reference page of the configuration while it is rendered.
type page struct {
	t       *testing.T
	structs map[string]*ast.GenDecl
	values  map[string]Setting
	flags   map[string]string // by key
	first   map[string]string // the first table of a type
	list    []string          // links to the tables
	text    strings.Builder   // their sections
}

// table renders the keys of a struct, then the tables in it.
func (p *page) table(typeName, prefix string) {
	if p.first[typeName] == "" {
		p.first[typeName] = prefix
	}
	fields := p.structs[typeName].Specs[0].(*ast.TypeSpec).Type.(*ast.StructType).Fields.List
	rows := ""
	for _, field := range fields {
		if _, nested := p.structs[typeOf(field)]; !nested {
			rows += p.row(field, prefix, p.first[typeName])
		}
	}
	if rows != "" {
		p.text.WriteString("| key | type | default | meaning |\n|---|---|---|---|\n" + rows)
	}
	for _, field := range fields {
		name, key := typeOf(field), prefix+tagOf(field)
		sub, nested := p.structs[name]
		if !nested {
			continue
		}
		heading := "[" + key + "]"
		if _, isArray := field.Type.(*ast.ArrayType); isArray {
			heading = "[" + heading + "]"
		}
		doc := sub.Doc.Text()
		if field.Doc != nil {
			doc = field.Doc.Text()
		}
		about := strings.TrimPrefix(oneLine(doc), name+" ")
		about = withoutName(about, field.Names[0].Name)
		p.list = append(p.list, fmt.Sprintf("[`%s`](#%s)", heading, strings.NewReplacer(".", "").Replace(key)))
		fmt.Fprintf(&p.text, "\n## %s\n\n%s\n\n", heading, wrapText(about))
		p.table(name, key+".")
	}
}

// withoutName returns a comment without the name that it begins with.
func withoutName(about, name string) string {
	about = strings.TrimPrefix(about, name+" ")
	about = strings.TrimPrefix(strings.TrimPrefix(about, "is "), "are ")
	about = strings.TrimPrefix(strings.TrimPrefix(about, "the "), "a ")
	return strings.ToUpper(about[:1]) + about[1:]
}

// row renders a key.
func (p *page) row(field *ast.Field, prefix, first string) string {
	name := tagOf(field)
	key := prefix + name
	if field.Doc == nil {
		p.t.Fatalf("the field of %s has no comment", key)
	}
	s, ok := p.values[key]
	if !ok {
		p.t.Fatalf("%s is in the source and not in the struct", key)
	}
	about := oneLine(field.Doc.Text())
	about = withoutName(about, field.Names[0].Name)
	if first != prefix {
		about = fmt.Sprintf("see `[%s]`", strings.TrimSuffix(first, "."))
	}
	if flag, ok := p.flags[key]; ok {
		about += " Flag: `" + flag + "`."
	}
	standard := ""
	if text := s.TOML(); !slices.Contains([]string{`""`, "[]", "{}", "0", `"0"`, `"0s"`, "false"}, text) {
		standard = "`" + text + "` "
	}
	return fmt.Sprintf("| `%s` | %s | %s| %s |\n", name, kindOf(s)+rangeOf(s), standard, strings.ReplaceAll(about, "|", `\|`))
}

func kindOf(s Setting) string {
	if s.tag.Get("path") != "" {
		return "path"
	}
	switch s.Value.Kind() {
	case reflect.Slice:
		return "list"
	case reflect.Map:
		return "table"
	case reflect.Float64:
		return "number"
	}
	return s.Type()
}

// rangeOf describes the bounds of a number or a size. All whole numbers have the same maximum if they have no other.
func rangeOf(s Setting) string {
	low, high, ok := strings.Cut(s.tag.Get("range"), "..")
	low, exclusive := strings.CutPrefix(low, ">")
	switch {
	case !ok, high == "" && low == "0":
		return ""
	case high == "":
		return ", at least " + low
	case low == "":
		return ", at most " + high
	case exclusive:
		return fmt.Sprintf(", above %s, at most %s", low, high)
	}
	return fmt.Sprintf(", %s to %s", low, high)
}

func tagOf(field *ast.Field) string {
	return reflect.StructTag(strings.Trim(field.Tag.Value, "`")).Get("toml")
}

// wrapText breaks a paragraph into lines of at most 120 columns.
func wrapText(text string) string {
	var p comment.Parser
	return strings.TrimSpace(string((&comment.Printer{TextWidth: 120}).Text(p.Parse(text))))
}

// typeOf returns the name of a field's type, or of its elements.
func typeOf(field *ast.Field) string {
	typ := field.Type
	if array, ok := typ.(*ast.ArrayType); ok {
		typ = array.Elt
	}
	return typ.(*ast.Ident).Name
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
			if s, ok := spec.Type.(*ast.StructType); ok && s.Fields.NumFields() > 0 && s.Fields.List[0].Tag != nil &&
				strings.Contains(s.Fields.List[0].Tag.Value, "toml") {
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

<!-- Written by "make docs" from the comments in internal/server/config. -->

The configuration is one TOML file, named with ` + "`--config FILE`" + `. Flags win over the file, and the file over the
defaults. The same file can serve all roles: each role uses the keys that concern it.

| task | command |
|---|---|
| Write a file to start from | ` + "`packhorse config init FILE`" + ` |
| Find every mistake in a file, with its line | ` + "`packhorse config check FILE`" + ` |
| Show all values, and where each comes from | ` + "`packhorse config show --config FILE`" + ` |
| Apply a changed file | SIGHUP |

SIGHUP applies nodes, routes, rules, the application's workers and pools, and the log level. The log names
changed keys that need a restart. If the server could not start with the file, SIGHUP changes nothing. Changes of TLS
and secret files apply without a signal.

A duration is a string such as "500ms", "30s" or "5m". A size is a number of bytes, or a string such as "64KiB" or
"10GiB". A default that is not shown is empty, 0 or false. Keys are case-sensitive, and an unknown key is an error.

## Tables

[top level](#top-level)
`
