package worker

import (
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/search/query"
)

func TestTranslate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"foo":                      `substr:"foo"`,
		"Foo":                      `case_substr:"Foo"`,
		"foo or (bar -Baz)":        `(or substr:"foo" (and substr:"bar" (not case_substr:"Baz")))`,
		"foo.*bar":                 `regex:"foo(?-s:.)*bar"`,
		"content:/a b/":            `content_substr:"a b"`,
		"file:_test x":             `(and file_substr:"_test" substr:"x")`,
		"sym:Foo":                  `sym:case_content_substr:"Foo"`,
		"sym:/^Foo.$/":             `sym:case_regex:"(?m:^)Foo(?-s:.)(?m:$)"`,
		"/(?i)foo/ case:yes":       `substr:"FOO"`,
		"lang:golang x":            `(and lang:Go substr:"x")`,
		"lang:c++ x":               `(and lang:C++ substr:"x")`,
		"branch:main rev:HEAD x":   `(and branch:"main" branch="HEAD" substr:"x")`,
		"repo:Team/ x":             `(and reporegex:"(?i)Team/" substr:"x")`,
		"repo:app$ x":              `(and reporegex:"(?i)app(?:\\.git)?$" substr:"x")`,
		`repo:app\$ x`:             `(and reporegex:"(?i)app\\$" substr:"x")`,
		"-repo:^a$ x":              `(and (not (reposet a a.git)) substr:"x")`,
		"repo:^a.git$ type:path y": `(and reporegex:"(?i)^a.git(?:\\.git)?$" file_substr:"y")`,
	} {
		q, err := query.Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		p, err := translate(q)
		if err != nil || p.query.String() != want {
			t.Errorf("%s: %v, %v; want %s", text, p.query, err, want)
		}
	}
	q, err := query.Parse("lang:klingon x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := translate(q); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
	for text, want := range map[string]plan{"repo:a": {repository: true}, "x select:file": {file: true},
		"type:symbol x": {symbol: true}, "x": {}} {
		q, err := query.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if p, err := translate(q); err != nil || p.repository != want.repository || p.file != want.file ||
			p.symbol != want.symbol {
			t.Errorf("%s: %+v, %v", text, p, err)
		}
	}
}

func TestLanguage(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"Go": "Go", "golang": "Go", "py": "Python", "python3": "Python", "js": "JavaScript", "ts": "TypeScript",
		"tsx": "TSX", "cpp": "C++", "c++": "C++", "C#": "C#", "csharp": "C#",
		"cs": "C#", "rs": "Rust", "rb": "Ruby", "sh": "Shell", "bash": "Shell", "kt": "Kotlin", "h": "C",
		".py": "Python", "yml": "YAML", "md": "Markdown", "proto": "Protocol Buffer",
		"protobuf": "Protocol Buffer", "docker": "Dockerfile", "make": "Makefile", "java": "Java", "klingon": "",
	} {
		if got, _ := language(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
