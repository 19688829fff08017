package query

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// show writes a query's tree as text.
func show(n *Node) string {
	if n == nil {
		return "everything"
	}
	if n.Op != Atom {
		var kids []string
		for _, kid := range n.Kids {
			kids = append(kids, show(kid))
		}
		return [...]string{And: "and", Or: "or", Not: "not"}[n.Op] + "(" + strings.Join(kids, " ") + ")"
	}
	text := [...]string{Any: "", Content: "content:", Path: "file:", Symbol: "sym:", Repo: "repo:", Branch: "branch:",
		Language: "lang:"}[n.Field]
	switch {
	case n.Names != nil:
		text += "=" + strings.Join(n.Names, ",")
	case n.Regexp:
		text += "/" + n.Pattern + "/"
	case n.Exact:
		text += "=" + n.Pattern
	default:
		text += n.Pattern
	}
	if n.Case {
		text += "!"
	}
	return text
}

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"foo":                          "foo",
		"foo bar":                      "and(foo bar)",
		"foo and bar":                  "and(foo bar)",
		"foo or bar baz":               "or(foo and(bar baz))",
		"foo OR bar AND NOT x":         "or(foo and(bar not(x)))",
		"(foo or bar) -baz":            "and(or(foo bar) not(baz))",
		"not not foo":                  "not(not(foo))",
		"repo:x a or b":                "and(repo:/x/ or(a b))",
		"repo:x lang:go a b or c":      "and(repo:/x/ lang:go or(and(a b) c))",
		"a or b or c file:x":           "and(file:/x/ or(a b c))",
		"repo:x -file:y a or b lang:c": "and(repo:/x/ not(file:/y/) lang:c or(a b))",
		"(repo:x a or b) c":            "and(and(repo:/x/ or(a b)) c)",
		"repo:x a or repo:y b":         "or(and(repo:/x/ a) and(repo:/y/ b))",
		"repo:x or repo:y":             "or(repo:/x/ repo:/y/)",
		"repo:x a or b repo:y or c":    "or(and(repo:/x/ a) and(b repo:/y/) c)",
		"(repo:x a) or b":              "and(repo:/x/ or(a b))",
		"-(a b)":                       "not(and(a b))",
		"((a))":                        "a",
		"order":                        "order",
		`"and" "or"`:                   "and(and or)",
		`"foo bar"`:                    "foo bar",
		`"a \"quoted\" \\ one"`:        `a "quoted" \ one`,
		`'it''s'`:                      "'it''s'",
		`don't`:                        "don't",
		"'a b'":                        "a b",
		`say:"a b"`:                    `and(say:"a b")`,
		"std::vector":                  "std::vector",
		"Foo":                          "Foo!",
		"Foo case:no":                  "Foo",
		"foo case:yes":                 "foo!",
		`\S+foo`:                       `/\S+foo/`,
		`\Qfoo`:                        `/\Qfoo/`,
		"fmt.Println(":                 "fmt.Println(!",
		"foo()":                        "foo()",
		"arr[0]":                       "arr[0]",
		"a.b":                          "a.b",
		"*ptr":                         "*ptr",
		"x++":                          "x++",
		"a||b":                         "a||b",
		"$HOME":                        "$HOME!",
		"->next":                       "->next",
		"--flag":                       "--flag",
		"- x":                          "and(- x)",
		"foo.*bar":                     "/foo.*bar/",
		"foo|bar":                      "/foo|bar/",
		"^func":                        "/^func/",
		"end$":                         "/end$/",
		"[a-z]+x":                      "/[a-z]+x/",
		"(foo|bar)baz":                 "/(foo|bar)baz/",
		"(foo|bar)":                    "/foo|bar/",
		"(*ptr).x":                     "(*ptr).x",
		"()":                           "()",
		"f(a b)":                       "and(f(a b))",
		`foo\.bar`:                     `/foo\.bar/`,
		`foo\ bar`:                     `/foo\ bar/`,
		"/foo.bar/":                    "/foo.bar/",
		`/a b\/c/`:                     "/a b/c/",
		"/usr/bin":                     "/usr/bin",
		"//":                           "//",
		"foo. patterntype:regexp":      "/foo./",
		"foo.* patterntype:literal":    "foo.*",
		`"foo.*" patterntype:regexp`:   "foo.*",
		`foo\ bar patterntype:literal`: "foo bar",
		"r:^a/b$ f:\\.go$ x":           `and(repo:=a/b file:/\.go$/ x)`,
		"repo:^(a/b|c\\.d)$ x":         "and(repo:=a/b,c.d x)",
		"repo:^(a.*|c)$ x":             "and(repo:/^(a.*|c)$/ x)",
		"repo:team/Übung x":            "and(repo:/team/Übung/ x)",
		"repo:a@b x":                   "and(or(repo:/a@b/ and(repo:/a/ branch:=b)) x)",
		`repo:a\@b x`:                  `and(repo:/a\@b/ x)`,
		`repo:"a@b" x`:                 "and(repo:/a@b/ x)",
		"repo:^a:b$ x":                 "and(repo:=a:b x)",
		`file:"a b" x`:                 "and(file:/a b/ x)",
		"file:/src/ x":                 "and(file://src// x)",
		"-file:_test -lang:Go x":       "and(not(file:/_test/) not(lang:Go) x)",
		"lang:c++ l:go x":              "and(lang:c++ lang:go x)",
		"sym:Foo content:bar":          "and(sym:Foo! content:bar)",
		"sym:/^Foo$/ content:\"a b\"":  "and(sym:/^Foo$/! content:a b)",
		"regex:a.b":                    "/a.b/",
		"type:symbol Foo":              "sym:Foo!",
		"type:file foo":                "content:foo",
		"type:path foo":                "file:foo",
		"type:file type:path foo":      "foo",
		"type:repo foo":                "repo:foo",
		"branch:main rev:v1 b:HEAD x":  "and(branch:main branch:=v1 branch:=HEAD x)",
		"rev:refs/heads/main x":        "and(branch:=main x)",
		"context:global fork:yes x":    "x",
		"count:5 x or y count:5":       "or(x y)",
		"(x or (y and -z)) f:a":        "and(or(x and(y not(z))) file:/a/)",
		"CaSe:YES Lang:go x":           "and(lang:go x!)",
		"foo)":                         "foo)",
		"a (":                          "and(a ()",
		"(*ptr":                        "(*ptr",
		"repo:a":                       "repo:/a/",
		"ünïcödé 世界":                   "and(ünïcödé 世界)",
	} {
		q, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := show(q.Root); got != want {
			t.Errorf("Parse(%q) = %s, want %s", text, got, want)
		}
	}
}

func TestHowItIsAnswered(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Query{
		"x count:7 timeout:90":         {Count: 7, Timeout: 90 * time.Second},
		"x count:all timeout:1m30s":    {Count: All, Timeout: 90 * time.Second},
		"x count:99999999999999999999": {Count: All},
		"x select:repo":                {Select: Repositories},
		"x select:file":                {Select: Files},
		"repo:a":                       {Select: Repositories},
		"repo:a -repo:b branch:main":   {Select: Repositories},
		"repo:a file:b":                {},
		"x type:repo":                  {Select: Repositories},
	} {
		q, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if q.Count != want.Count || q.Timeout != want.Timeout || q.Select != want.Select || q.Text != text {
			t.Errorf("Parse(%q) = %+v, want %+v", text, q, want)
		}
	}
}

// TestErrorsPoint: the error is about the bytes that are wrong.
func TestErrorsPoint(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                    "",
		"  \t":                "",
		"count:5":             "",
		"foo or":              "or",
		"or foo":              "or",
		"a and":               "and",
		"a and or b":          "and",
		"not":                 "not",
		"a (b c":              "(",
		`a "b c`:              `"`,
		"a repo: b":           "repo:",
		"a case:maybe":        "maybe",
		"a count:0":           "0",
		"a count:-1":          "-1",
		"a count:many":        "many",
		"a timeout:soon":      "soon",
		"a timeout:0":         "0",
		"a select:owner":      "owner",
		"a type:diff":         "diff",
		"a patterntype:struc": "struc",
		"a -count:5":          "5",
		"a count:5 count:6":   "6",
		"x /a(b/":             "",
		"x repo:a[b":          "[b",
		"x f:a{2000}":         "{2000}",
		"a\x00b":              "\x00",
		"a \xff b":            "\xff",
		"a \x1b[31m":          "\x1b",
		"repo:has.file(x) a":  "has.file(x)",
		`a ""`:                `""`,
		"( or a)":             "or",
		"x f:(((((((a{100}){100}){100}){100}){100}){100})": "",
	} {
		_, err := Parse(text)
		bad, ok := errors.AsType[*Error](err)
		if !ok {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got := text[bad.Offset : bad.Offset+bad.Length]; want != "" && got != want {
			t.Errorf("%q: the error is about %q, want %q: %v", text, got, want, err)
		}
		if !fault.Is(err, fault.Invalid) || fault.Message(err) != err.Error() {
			t.Errorf("%q: %s: %s", text, fault.KindOf(err), fault.Message(err))
		}
		if !utf8.ValidString(err.Error()) || strings.ContainsAny(err.Error(), "\x00\x1b") {
			t.Errorf("%q: %q", text, err)
		}
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range 10_000 {
		names = append(names, fmt.Sprintf("team/a-repository-%d", i))
	}
	if q, err := Parse("repo:^(" + strings.Join(names, "|") + ")$ x"); err != nil || len(q.Root.Kids[0].Names) != 10_000 {
		t.Errorf("10,000 repositories in a filter: %v", err)
	}
	for _, text := range []string{
		strings.Repeat("x", 1<<20), strings.Repeat("x ", maxAtoms+1), strings.Repeat("(", maxDepth+1) + "a b" +
			strings.Repeat(")", maxDepth+1),
		strings.Repeat("-(a ", 100_000), strings.Repeat("not ", 100_000) + "a", "f:" + strings.Repeat("a", maxRegexp+1),
		strings.Repeat("a or ", 100_000) + "a",
		`/\pL{900}/`, strings.Repeat(`/.{0,999}y/ or `, 300) + "a", `repo:((\pL{9}){9}){9}`,
		strings.Repeat(`(\pN\pM{50,}){3}|`, 70) + "a", `patterntype:regexp \pL{900}`,
	} {
		if _, err := Parse(text); err == nil || len(err.Error()) > 200 {
			t.Errorf("%.20s (%d bytes): %v", text, len(text), err)
		}
	}
}

func TestExpressionsOfUsualSize(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`/\pL{1,100}/`, `/.{0,999}x/`, `/[[:word:]]{1000}/`, `/\w{1,64}@\w{1,255}\.\w{2,10}/`,
		strings.Repeat("repo:a.*b ", 900), "/" + strings.Repeat("word|", 3000) + "x/",
	} {
		if _, err := Parse(text); err != nil {
			t.Errorf("%.40s: %v", text, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"foo or (bar -baz)", `repo:a@b f:\.go$ "x y" /re/`, "count:all case:yes sym:/a|b/", "((", "-(", `"\"`, "a\\", "/\\/",
		"repo:^(a|b)$",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		q, err := Parse(text)
		if err != nil {
			bad, ok := errors.AsType[*Error](err)
			if !ok || bad.Offset < 0 || bad.Length < 0 || bad.Offset+bad.Length > len(text) {
				t.Fatalf("%q: %#v", text, err)
			}
			return
		}
		q.Root.Atoms(func(n *Node) {
			if n.Pattern == "" && n.Names == nil {
				t.Fatalf("%q: %s", text, show(q.Root))
			}
		})
	})
}

// TestKindTravels: a query of another kind is the same when its text is read again.
func TestKindTravels(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`([a-z.*()|"/:\\-]{1,6}|repo:[a-z@]{1,4}|or|not|\(|\)| ){1,12}`).Draw(t, "text")
		kind := rapid.SampledFrom([]Kind{Auto, Literal, Regexp}).Draw(t, "kind")
		q, err := ParseAs(kind, text)
		if err != nil {
			return
		}
		again, err := Parse(q.Text)
		if err != nil || show(again.Root) != show(q.Root) || again.Text != q.Text {
			t.Fatalf("%q as %s: %v, %s; again %v", text, kind, err, show(q.Root), again)
		}
	})
}

// TestUnknown finds words that look like filters which there are not, and none in code.
func TestUnknown(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"author:me x": "author", "fiel:x y": "fiel", "repos:x y": "repos", "lnag:go y": "lnag",
		"-before:yesterday x": "before", "std::string": "", "http://example.org": "", "key:value": "", `"author:me"`: "",
		"content:author:me": "", "default: x": "", "repo:x file:y lang:go z": "",
	} {
		q, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := strings.Join(q.Unknown, " "); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// TestSelectOfFilters: a query with filters only selects repositories, unless it has another setting.
func TestSelectOfFilters(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Select{
		"repo:x": Repositories, "repo:x select:file": Files, "repo:x type:file": Matches, "repo:x a": Matches,
		"repo:x a type:repo": Repositories,
	} {
		q, err := Parse(text)
		if err != nil || q.Select != want {
			t.Errorf("%s: %v, %v; want %q", text, q, err, want)
		}
	}
}
