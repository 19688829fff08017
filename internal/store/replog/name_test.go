package replog

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

func TestEscapePath(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"team/app.git":                 "team/app.git",
		"Team/app":                     "~54eam/app",
		"a b/~/\xff/é":                 "a~20b/~7e/~ff/~c3~a9",
		"team/3fffffffffffffff":        "team/3fffffffffffffff",
		"team/3ffffffffffffffff":       "team/3ffffffffffffffff",
		"team/3fffffffffffffff/log":    "team/3fffffffffffffff/log",
		strings.Repeat("ä", 117) + "/": strings.Repeat("~c3~a4", 117),
	} {
		p := repoPath(t, s)
		if got := escape(p.String()); got != want {
			t.Errorf("escape(%q) = %q, want %q", s, got, want)
		}
		if got, n, err := ParseNameKey("names/" + want + "!/" + Down(7)); err != nil || got != p || n != 7 {
			t.Errorf("ParseNameKey of %q = %q, %d, %v", s, got, n, err)
		}
		if _, err := OpenName(nil, p); (len(want) > maxEscaped) != fault.Is(err, fault.Invalid) {
			t.Errorf("OpenName of %d escaped bytes = %v", len(want), err)
		}
	}
}

func FuzzParseNameKey(f *testing.F) {
	for _, key := range []string{"names/a!/3fffffffffffffff", "names/~61!/3fffffffffffffff", "names/A!/3fffffffffffffff",
		"names/~4!/3fffffffffffffff", "names/~+4!/3fffffffffffffff", "names/a/!/3fffffffffffffff", "names/a!/0",
		"names/a/3fffffffffffffff", "repos/a",
		"names/3fffffffffffffff!/3fffffffffffffff", "names/~41!/3FFFFFFFFFFFFFFF", "names/~4A!/3fffffffffffffff"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		p, n, err := ParseNameKey(key)
		switch {
		case err != nil && !fault.Is(err, fault.Corrupt):
			t.Errorf("ParseNameKey(%q) = %v, want the kind corrupt", key, err)
		case err == nil && namesPrefix+escape(p.String())+nameEnd+Down(n) != key:
			t.Errorf("ParseNameKey(%q) = %q, %d, which has another key", key, p, n)
		}
	})
}

func TestNameRoundTrip(t *testing.T) {
	t.Parallel()
	var none *Name
	first := none.Next(repoPath(t, "team/\xff"), Live, txn1, "a", time.UnixMilli(5).UTC())
	want := first.Next(first.Path, Moving, txn2, "b", time.UnixMilli(6).UTC())
	want.From, want.Renames = repoPath(t, "x"), 2
	want.Unknown = map[string][]byte{"y": []byte("1")}
	body, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeName(body)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("DecodeName(%s) = %+v, %v, want %+v", body, got, err, want)
	}
	for name, change := range map[string]func(*Name){
		"number": func(r *Name) { r.Number = 0 }, "path": func(r *Name) { r.Path = git.RepoPath{} },
		"id": func(r *Name) { r.ID = "x" }, "state": func(r *Name) { r.State = "x" },
		"from": func(r *Name) { r.State = Live }, "no from": func(r *Name) { r.From = git.RepoPath{} },
	} {
		r := *want
		change(&r)
		if body, err := r.Encode(); err == nil {
			t.Errorf("%s: Encode = %s, want an error", name, body)
		}
	}
	for _, replace := range [][2]string{{`"moving"`, `"x"`}, {`"name"`, `"push"`}, {`"x"`, `"/x"`}, {"1970", "x"}} {
		if r, err := DecodeName(bytes.Replace(body, []byte(replace[0]), []byte(replace[1]), 1)); err == nil {
			t.Errorf("%s -> %s: DecodeName = %+v, want an error", replace[0], replace[1], r)
		}
	}
}
