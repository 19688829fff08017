package sparse

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

func mustParse(t testing.TB, file string) *Patterns {
	t.Helper()
	p, err := Parse([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestMatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		file, path string
		isDir      bool
		want       Decision
	}{
		{"", "", true, Undecided},
		{"/*\n!/*/\n", "", true, Undecided},
		{"/*\n!/*/\n", "file", false, Include},
		{"/*\n!/*/\n", "dir", true, Exclude},
		{"/*\n!/*/\n", "dir/file", false, Undecided},
		{"/*", "", true, Undecided}, // only base names match the root
		{"/**", "", true, Undecided},
		{"//", "", true, Undecided},
		{"*", "", true, Include},
		{"/", "", true, Include},
		{"/", "x", true, Undecided},
		{"\r\n", "", true, Include}, // an empty pattern
		{"#x\nx", "#x", false, Undecided},
		{"\\#x", "#x", false, Include},
		{"\\!x", "!x", false, Include},
		{"!x", "x", false, Exclude},
		{"x  ", "x", false, Include},
		{"x\\ ", "x ", false, Include},
		{"x\t", "x", false, Undecided},
		{"\xef\xbb\xbfx", "x", false, Include},
		{"x\x00y", "x", false, Include},
		{"x/", "x", false, Undecided},
		{"x/", "a/x", true, Include},
		{"/x", "a/x", false, Undecided},
		{"a/x", "b/a/x", false, Undecided},
		{"/foo/", "foobar", true, Undecided},
		{"*.go", "a/b.go", false, Include},
		{"a/*", "a/b/c", false, Undecided},
		{"a/**", "a/b/c", false, Include},
		{"a/**", "a", true, Undecided},
		{"**/x", "x", false, Include},
		{"**/x", "a/b/x", false, Include},
		{"**/x", "ax", false, Undecided},
		{"a/**/x", "a/x", false, Include},
		{"a/**/x", "a/b/c/x", false, Include},
		{"a/**/**/x", "a/x", false, Include},
		{"a**/x", "ab/x", false, Include},
		{"a**/x", "ab/c/x", false, Include}, // after a literal prefix git takes "**" as if it were the first
		{"/?a**/x", "bab/c/x", false, Undecided},
		{"[a-c]x", "bx", false, Include},
		{"[!a-c]x", "bx", false, Undecided},
		{"a[!x]b", "a/b", false, Undecided},
		{"/a[/]b", "a/b", false, Undecided},
		{"[[:alpha:]]", "x", false, Include},
		{"[[:nothing:]x]", "x", false, Undecided},
		{"[]-]", "-", false, Include},
		{"[x", "[x", false, Undecided},
		{"x\\", "x\\", false, Undecided},
	} {
		if got := mustParse(t, c.file).Match([]byte(c.path), c.isDir); got != c.want {
			t.Errorf("Match(%q) with %q = %v, want %v", c.path, c.file, got, c.want)
		}
	}
}

func TestParseLimits(t *testing.T) {
	t.Parallel()
	for _, file := range []string{strings.Repeat("a\n", maxPatterns), "*" + strings.Repeat("?", maxTokens-1),
		strings.Repeat("a", maxSize), strings.Repeat("#\n", maxSize/2)} {
		if _, err := Parse([]byte(file)); err != nil {
			t.Errorf("%.10q: %v", file, err)
		}
	}
	for _, file := range []string{strings.Repeat("a\n", maxPatterns+1), "*" + strings.Repeat("?", maxTokens),
		"*" + strings.Repeat("[a]", 70_000), "[" + strings.Repeat("a", maxSize)} {
		if _, err := Parse([]byte(file)); !fault.Is(err, fault.Invalid) {
			t.Errorf("%.10q: got %v, want Invalid", file, err)
		}
	}
}

// TestHostilePatterns has patterns for which backtracking takes exponential time.
func TestHostilePatterns(t *testing.T) {
	t.Parallel()
	for _, part := range []string{"*a", "**/", "**/*a", "?*", "[a-z]*/**/"} {
		glob := strings.Repeat(part, 1000/len(part))
		p := mustParse(t, "/"+glob+"Z\n"+glob+"Z")
		path := []byte(strings.Repeat("aaaa/", 500) + strings.Repeat("a", 1000))
		begin := time.Now()
		if got := p.Match(path, false); got != Undecided {
			t.Errorf("%q: got %v", part, got)
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("%q: took %v", part, took)
		}
	}
}

// Generators of files and paths. A generator is not safe for concurrent use, so only one of the tests is parallel. Both
// have few different letters, so that patterns match.
var (
	patternPart = rapid.SampledFrom([]string{"a", "b", "ab", "c", "/", "/", "*", "*", "**", "**/", "/**", "?", "[ab]",
		"[!a]", "[^b-c]", "[a-", "-b]", "[[:alpha:]]", "[[:punct:]_]", "[[:space:]]", "[[:x:]]", "[[:", ":]", "[]a]",
		"[\\]]", "\\", "\\*", "\\/", "!", "#", " ", ".", "-", "]", "[", "\t", "é", "[a-\\c]", "[--0]", "[[-b]"})
	line = rapid.Custom(func(t *rapid.T) string {
		return rapid.SampledFrom([]string{"", "", "", "!", "/", "!/", "\\"}).Draw(t, "begin") +
			strings.Join(rapid.SliceOfN(patternPart, 0, 7).Draw(t, "parts"), "") +
			rapid.SampledFrom([]string{"", "", "", "/", " ", "\\ ", "\r", "\x00x", "*"}).Draw(t, "end")
	})
	file = rapid.Custom(func(t *rapid.T) string {
		return rapid.SampledFrom([]string{"", "", "", "", "\xef\xbb\xbf"}).Draw(t, "mark") +
			strings.Join(rapid.SliceOfN(line, 0, 5).Draw(t, "lines"), "\n") +
			rapid.SampledFrom([]string{"", "\n"}).Draw(t, "end")
	})
	name = rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "ab", "c", "é", "*", "[", "]", "\\", "x", "!",
			"#", "-", "_", " ", "\t", "\x0b", "?"}), 1, 4).Draw(t, "name"), "")
	})
	path = rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(name, 1, 4).Draw(t, "names"), "/")
	})
)

// ignored is the answer of check-ignore for a path that does not exist: nothing below a matched directory is matched by
// later patterns.
func ignored(p *Patterns, path string) Decision {
	for i := range len(path) {
		if path[i] == '/' && p.Match([]byte(path[:i]), true) == Include {
			return Include
		}
	}
	return p.Match([]byte(path), false)
}

// TestMatchIsCheckIgnores writes the files as .gitignore files of directories, and asks git in one process.
func TestMatchIsCheckIgnores(t *testing.T) {
	dir := t.TempDir()
	gittest.Run(t, "", "", "init", "-q", dir)
	// Without a match git exits with an error.
	if err := os.WriteFile(filepath.Join(dir, ".git/info/exclude"), []byte("/match\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	repo := gittest.At(t, dir)
	rapid.Check(t, func(rt *rapid.T) {
		files := rapid.SliceOfN(file, 1, 20).Draw(rt, "files")
		var in strings.Builder
		var want []Decision
		var of []int
		for i, file := range files {
			sub := filepath.Join(dir, fmt.Sprint("d", i))
			if err := os.MkdirAll(sub, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(sub, ".gitignore"), []byte(file), 0o600); err != nil {
				t.Fatal(err)
			}
			p := mustParse(t, file)
			for _, path := range rapid.SliceOfN(path, 1, 12).Draw(rt, "paths") {
				want, of = append(want, ignored(p, path)), append(of, i)
				fmt.Fprintf(&in, "d%d/%s\x00", i, path)
			}
		}
		in.WriteString("match\x00")
		out := repo.GitIn(in.String(), "check-ignore", "-z", "-v", "-n", "--no-index", "--stdin")
		fields := strings.Split(out, "\x00")
		if len(fields) != 4*(len(want)+1)+1 {
			rt.Fatalf("%d fields for %d paths", len(fields), len(want))
		}
		for i, got := range want {
			source, number, pattern, path := fields[4*i], fields[4*i+1], fields[4*i+2], fields[4*i+3]
			want := Include
			switch {
			case source == "":
				want = Undecided
			case strings.HasPrefix(pattern, "!"):
				want = Exclude
			}
			if got != want {
				rt.Fatalf("Match(%q) = %v, want %v, by line %s of %q", path, got, want, number, files[of[i]])
			}
		}
	})
}

// filtered returns the paths of blobs that the filter includes.
func filtered(p *Patterns, paths []string) (included []string) {
	decide := func(path string, isDir, parent bool) bool {
		if d := p.Match([]byte(path), isDir); d != Undecided {
			return d == Include
		}
		return parent
	}
	for _, path := range paths {
		isIncluded := decide("", true, false)
		for i := range len(path) {
			if path[i] == '/' {
				isIncluded = decide(path[:i], true, isIncluded)
			}
		}
		if decide(path, false, isIncluded) {
			included = append(included, path)
		}
	}
	return included
}

// In directories with the same state, all that is below has the same decision.
func TestState(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		p := mustParse(t, file.Draw(rt, "file"))
		a, b := path.Draw(rt, "a"), path.Draw(rt, "b")
		if a == "" || b == "" || p.State([]byte(a)) != p.State([]byte(b)) {
			return
		}
		for range 10 {
			below, isDir := path.Draw(rt, "below"), rapid.Bool().Draw(rt, "isDir")
			if below == "" {
				continue
			}
			got, want := p.Match([]byte(a+"/"+below), isDir), p.Match([]byte(b+"/"+below), isDir)
			if got != want {
				rt.Fatalf("%q: %v, %q: %v", a+"/"+below, got, b+"/"+below, want)
			}
		}
	})
}

// TestMatchIsTheFilters lists the blobs of a commit with sparse:oid. Each file contains its path.
func TestMatchIsTheFilters(t *testing.T) {
	t.Parallel()
	repo := gittest.Init(t)
	var in strings.Builder
	in.WriteString("commit refs/heads/main\ncommitter C <c@x> 1700000000 +0000\ndata 1\nx\n")
	for i := range 300 {
		path := path.Example(i)
		var quoted strings.Builder
		for _, c := range []byte(path) {
			fmt.Fprintf(&quoted, "\\%03o", c)
		}
		fmt.Fprintf(&in, "M 100644 inline \"%s\"\ndata %d\n%s\n", quoted.String(), len(path), path)
	}
	repo.GitIn(in.String(), "fast-import", "--quiet")
	paths, byID := []string(nil), map[string]string{}
	for entry := range strings.SplitSeq(strings.TrimSuffix(repo.Git("ls-tree", "-r", "-z", "main"), "\x00"), "\x00") {
		attributes, path, _ := strings.Cut(entry, "\t")
		paths = append(paths, path)
		byID[strings.Fields(attributes)[2]] = path
	}
	rapid.Check(t, func(rt *rapid.T) {
		file := file.Draw(rt, "file")
		filter := repo.GitIn(file, "hash-object", "-w", "--stdin")
		var want []string
		for id := range strings.FieldsSeq(repo.Git("rev-list", "--objects", "--no-object-names", "--filter=sparse:oid="+
			filter,
			"main")) {
			if path, ok := byID[id]; ok {
				want = append(want, path)
			}
		}
		got := filtered(mustParse(t, file), paths)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			rt.Fatalf("%q includes %q, want %q", file, got, want)
		}
	})
}

// FuzzMatch wants no panic, and for patterns without special bytes the plain meaning.
func FuzzMatch(f *testing.F) {
	for i := range 30 {
		f.Add(file.Example(i), path.Example(i), i%2 == 0)
	}
	f.Fuzz(func(t *testing.T, file, path string, isDir bool) {
		p, err := Parse([]byte(file))
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Errorf("got %v, want Invalid", err)
			}
			return
		}
		got := p.Match([]byte(path), isDir)
		if file == "" || strings.ContainsAny(file, "*?[\\!#/\n\r\x00 \xef") {
			return
		}
		want := Undecided
		if path[strings.LastIndexByte(path, '/')+1:] == file {
			want = Include
		}
		if got != want {
			t.Errorf("Match(%q) with %q = %v, want %v", path, file, got, want)
		}
	})
}

// BenchmarkMatch reports the cost of one path with 3 and with 1,000 patterns.
func BenchmarkMatch(b *testing.B) {
	var many strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&many, "/dir%d/sub/\n", i)
	}
	path := []byte("src/internal/component/widget_test.go")
	for name, file := range map[string]string{"few": "/*\n!/*/\n*.md\n", "many": many.String(),
		"glob": "/src/**/*_test.[ch]"} {
		b.Run(name, func(b *testing.B) {
			p := mustParse(b, file)
			b.ReportAllocs()
			for b.Loop() {
				p.Match(path, false)
			}
		})
	}
}
