package repo

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// configPieces are the parts of random configurations.
var configPieces = []string{
	"[core]\n", "[a \"b\"]", "[a.B]", "[a \"x\\\"y\\\\z\"]\n", "[A-1]", "[]", "[a", "[ a]", "[a\r]", "[a \t\"q\"]",
	"[a \"\"]", "[a \"b\" ]", "\n", "\r\n", "\r",
	"key = value\n", "Key=Value", "k", "k\n", " = ", "=", "\"", "\"quoted # ; \"", "\\n", "\\t", "\\\\", "\\\"", "\\b",
	"\\x", "\\\n", "\\\r\n", " ", "  ", "\t", "a", "1", "-",
	"# comment\n", "; c", "true", "é", ".", "]", "[include]\npath = /etc/passwd\n", "k = \"a  b\"  c \n", "\ufeff",
}

var configSeeds = []string{
	"", "\ufeff[core]\n\tbare = true\n", "[a]k", "[a]\nk =", "[a]\nk=\\", "k = v\n", "[a]\nk = v \"\"\n",
	"[a]\nk = a\rb\r\n", "[a]\nk v\n", "[a]k=\"x", "[a]k=\"x\\\ny\"\n", "[a]k # c\n",
	"[a]\n[b]\nx=1\nx=2\n", "[a]k = " + strings.Repeat("long ", 5000) + "\n",
	"[core]\n\trepositoryFormatVersion = 1\n[extensions]\n\tobjectFormat = sha256\n",
}

// oracle asks git for all keys and values; ok is false if git refuses. A key without a value is "true" for us.
func oracle(t testing.TB, text string) (all []string, ok bool) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := gittest.At(t, "").Try("config", "-f", file, "--no-includes", "-l", "-z")
	if err != nil {
		return nil, false
	}
	for entry := range strings.SplitSeq(strings.TrimSuffix(out, "\x00"), "\x00") {
		if entry == "" {
			continue
		}
		key, value, found := strings.Cut(entry, "\n")
		if !found {
			value = "true"
		}
		all = append(all, key+"="+normal(value))
	}
	slices.Sort(all)
	return all, true
}

// normal hides a difference between versions of git: newer ones keep tabs inside a value where older ones, and we, have
// spaces.
func normal(value string) string { return strings.NewReplacer("\t", " ", "\r", " ").Replace(value) }

func compareWithGit(t testing.TB, text string) {
	t.Helper()
	if strings.Contains(text, "\x00") {
		return // we refuse it; git's C strings end there
	}
	want, ok := oracle(t, text)
	config, err := ParseConfig(text)
	if ok != (err == nil) {
		t.Errorf("config %q: git accepts it: %t; we: %v", text, ok, err)
		return
	}
	var got []string
	for _, v := range config.variables {
		got = append(got, v.key+"="+normal(v.value))
	}
	slices.Sort(got)
	if ok && !slices.Equal(got, want) {
		t.Errorf("config %q:\n got %q\nwant %q", text, got, want)
	}
}

func TestConfigAsGitReadsIt(t *testing.T) {
	t.Parallel()
	for _, text := range configSeeds {
		compareWithGit(t, text)
	}
	const seed = 11
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 600 {
		var b strings.Builder
		if rnd.IntN(3) > 0 {
			b.WriteString("[s]\n")
		}
		for range rnd.IntN(10) {
			b.WriteString(configPieces[rnd.IntN(len(configPieces))])
		}
		compareWithGit(t, b.String())
	}
}

func FuzzParseConfig(f *testing.F) {
	for _, text := range append(configSeeds, configPieces...) {
		f.Add(text)
	}
	f.Add("[uploadpack]\nallowFilter\nkeepAlive = 1k\nallowAnySHA1InWant = no\nadvertiseBundleURIs = 1\n[bundle " +
		"\"x\"]\nuri = https://x/\n")
	f.Add("[uploadpackfilter \"tree\"]\nmaxDepth = 2\nallow = 0\n[lsrefs]\nunborn = allow\n[transfer]\nadvertiseSID = x\n")
	f.Fuzz(func(t *testing.T, text string) {
		config, err := ParseConfig(text)
		if err != nil && config.variables != nil {
			t.Error("got an error and a configuration, want one of them")
		}
		policy, err := newPolicy(config, DefaultPolicy())
		if (policy == nil) != (err != nil) || err != nil && !fault.Is(err, fault.Corrupt) {
			t.Errorf("%+v, %v", policy, err)
		}
	})
}
