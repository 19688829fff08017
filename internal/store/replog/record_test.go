package replog

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

const (
	txn1 = "aaaaaaaaaaaaaaaaaaaaaaaaaa"
	txn2 = "bbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func id(digit string) git.ObjectID { return git.MustParseObjectID(strings.Repeat(digit, 40)) }

func repoPath(t testing.TB, s string) git.RepoPath {
	t.Helper()
	p, err := git.ParseRepoPath(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// sample is a record with every field.
func sample(t testing.TB) *Record {
	return &Record{
		Number: 42, Txn: txn2, Parent: txn1, Kind: KindPush, At: time.UnixMilli(1_764_085_712_345).UTC(), Node: "b",
		Pushes:       []Push{{ID: "r1", By: "al\xffice", Refs: 2}},
		Names:        []git.RepoPath{repoPath(t, `"quoted"`), repoPath(t, "team/app"), repoPath(t, "team/\xff")},
		Head:         "refs/heads/main",
		Config:       []Setting{{"receive.hiderefs", "x"}, {"x.\xfe.y", "\xff\n"}, {"receive.hiderefs", "!x/y"}},
		ObjectFormat: git.SHA1, Quota: 1 << 40,
		Refs: Refs{Checkpoint: "refs/28-" + txn1, SHA256: Sum{1}, Bytes: 100, Count: 2, Tail: []TailEntry{
			{Number: 29, Changes: []RefChange{{Name: "refs/heads/é<&>", New: id("1")}}},
			{Number: 42, Changes: []RefChange{{Name: "refs/heads/gone", Old: id("1")},
				{Name: "refs/heads/\xfe", Old: id("2"), New: id("3")}, {Name: "refs/tags/v1", New: id("4"), Peeled: id("5")}}},
		}},
		Packs: []Pack{{Key: PackKey("pack-12", txn2), Bytes: 10, Objects: 3, SHA256: Sum{2}, IdxBytes: 20, IdxSHA256: Sum{3},
			Since: 41, Extra: []File{{Ext: ".rev", Bytes: 4, SHA256: Sum{4}}}}},
		ObjectsEpoch: 3, GC: 7, Renames: 2, Condemned: []string{"packs/pack-1-x", "refs/1-x"},
		Unknown: map[string][]byte{"zz": []byte(`{"a":[1]}`)},
	}
}

// The estimate is not below the length in JSON, and not far above, whatever JSON makes of names.
func TestTailBytes(t *testing.T) {
	t.Parallel()
	for _, char := range []string{"x", "é", `"`, "\xff", "é\xff", "\"\xff"} {
		r := sample(t)
		r.Refs.Tail = nil
		before, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		name := git.RefName("refs/heads/" + strings.Repeat(char, 100))
		change := RefChange{Name: name, Old: id("1"), New: id("2"), Peeled: id("3")}
		r.Refs.Tail = []TailEntry{{Number: 42, Changes: []RefChange{change}}}
		after, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		tail := len(`,"tail":[{"n":42,"set":{}}]`)
		if got, want := r.Refs.TailBytes(), len(after)-len(before)-tail; got < want || got > want+10 {
			t.Errorf("TailBytes with %q = %d, want %d to %d", char, got, want, want+10)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	want := sample(t)
	body, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(body)
	if err != nil {
		t.Fatalf("Decode(%s): %v", body, err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("Decode(%s) = %+v, want %+v", body, got, want)
	}
	if i := bytes.Index(body, []byte(`"at"`)); i != 1 || bytes.Index(body, []byte(`"zz"`)) < bytes.Index(body, []byte(`"txn"`)) {
		t.Errorf("the keys of %s are not sorted", body)
	}
	if want := `"refs/heads/é<&>"`; !bytes.Contains(body, []byte(want)) {
		t.Errorf("%s does not have %s as it is", body, want)
	}
}

func TestNext(t *testing.T) {
	t.Parallel()
	r := sample(t)
	next := r.Next(KindConfigure, "c", time.Now())
	next.Packs[0].Key, next.Config[0].Value, next.Condemned[0] = "packs/x", "y", "packs/y"
	next.Refs.Tail[0].Number, next.Names[0] = 1, repoPath(t, "a")
	if !reflect.DeepEqual(r, sample(t)) {
		t.Errorf("changes of the next record changed this one: %+v", r)
	}
	if next.Number != r.Number+1 || next.Parent != r.Txn || !isID(next.Txn) || next.Pushes != nil || next.Unknown == nil {
		t.Errorf("Next = %+v", next)
	}
}

func TestPackName(t *testing.T) {
	t.Parallel()
	p := Pack{Key: PackKey("pack-12", txn1), Extra: []File{{Ext: ".rev"}}}
	if got := p.Name(); got != "pack-12" {
		t.Errorf("Name of %s = %s, want pack-12", p.Key, got)
	}
	if got := p.Files(); len(got) != 3 || got[0].Ext != ".pack" || got[1].Ext != ".idx" || got[2].Ext != ".rev" {
		t.Errorf("Files of %s = %v", p.Key, got)
	}
}

func TestInvalidRecords(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Record){
		"number":         func(r *Record) { r.Number = 0 },
		"large number":   func(r *Record) { r.Number = maxNumber },
		"txn":            func(r *Record) { r.Txn = "../x" },
		"parent":         func(r *Record) { r.Parent = "" },
		"first's parent": func(r *Record) { r.Number = 1 },
		"own parent":     func(r *Record) { r.Parent = r.Txn },
		"kind":           func(r *Record) { r.Kind = "" },
		"head":           func(r *Record) { r.Head = "refs/heads/../x" },
		"format":         func(r *Record) { r.ObjectFormat = 0 },
		"section":        func(r *Record) { r.Config[1].Key = "a]\n[include]\npath=/x\n[x.b" },
		"upper case":     func(r *Record) { r.Config[1].Key = "receive.fsck.skipList" },
		"subsection":     func(r *Record) { r.Config[1].Key = "receive.x\n[include].y" },
		"no key":         func(r *Record) { r.Config[1].Key = "receive" },
		"key":            func(r *Record) { r.Config[1].Key = "receive.x=y\n[include]\npath" },
		"value":          func(r *Record) { r.Config[1].Value = "\x00" },
		"quota":          func(r *Record) { r.Quota = -1 },
		"names":          func(r *Record) { r.Names[0], r.Names[2] = r.Names[2], r.Names[0] },
		"deleted":        func(r *Record) { r.Deleted = true },
		"checkpoint":     func(r *Record) { r.Refs.Checkpoint = "refs/../x" },
		"no checkpoint":  func(r *Record) { r.Refs.Checkpoint = "" },
		"tail order":     func(r *Record) { r.Refs.Tail[0].Number = 42 },
		"tail ahead":     func(r *Record) { r.Refs.Tail[1].Number = 43 },
		"empty entry":    func(r *Record) { r.Refs.Tail[1].Changes = nil },
		"ref":            func(r *Record) { r.Refs.Tail[0].Changes[0].Name = "refs/heads/../x" },
		"HEAD":           func(r *Record) { r.Refs.Tail[0].Changes[0].Name = "HEAD" },
		"same ref":       func(r *Record) { r.Refs.Tail[1].Changes[0].Name = "refs/tags/v1" },
		"object format":  func(r *Record) { r.ObjectFormat = git.SHA256 },
		"deleted tag":    func(r *Record) { r.Refs.Tail[1].Changes[2].New = git.ObjectID{} },
		"pack key":       func(r *Record) { r.Packs[0].Key = "packs/../x" },
		"same pack":      func(r *Record) { r.Packs = append(r.Packs, r.Packs[0]) },
		"pack size":      func(r *Record) { r.Packs[0].Bytes = -1 },
		"huge pack":      func(r *Record) { r.Packs[0].Bytes = 1 << 62 },
		"huge index":     func(r *Record) { r.Packs[0].IdxBytes = 1 << 62 },
		"huge extra":     func(r *Record) { r.Packs[0].Extra[0].Bytes = 1 << 62 },
		"objects":        func(r *Record) { r.Packs[0].Objects = 1 << 32 },
		"huge refs":      func(r *Record) { r.Refs.Bytes = math.MaxInt64 },
		"pack since":     func(r *Record) { r.Packs[0].Since = 43 },
		"extension":      func(r *Record) { r.Packs[0].Extra[0].Ext = "/x" },
		"condemned use":  func(r *Record) { r.Condemned = []string{r.Packs[0].Key} },
		"condemned ref":  func(r *Record) { r.Condemned = []string{r.Refs.Checkpoint} },
		"condemned log":  func(r *Record) { r.Condemned = []string{"log/1"} },
		"condemned same": func(r *Record) { r.Condemned[1] = r.Condemned[0] },
	} {
		r := sample(t)
		change(r)
		if body, err := r.Encode(); err == nil {
			t.Errorf("%s: Encode = %s, want an error", name, body)
		}
	}
}

// A repository in a store has no configuration that names files or programs.
func TestAllowedSettings(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]bool{
		"receive.denydeletes": true, "receive.fsck.badname": true, "uploadpackfilter.tree.allow": true,
		"http.receivepack": true, "core.disambiguate": true, "lfs.quota": true, "lfs.grace": true,
		"packhorse.readonly": true, "packhorse.mirror": false, "packhorse.expires": false,
		"receive.fsck.skiplist": false, "receive.certnonceseed": false, "uploadpack.packobjectshook": false,
		"hook.x.command": false, "lfs.url": false, "core.hookspath": false, "include.path": false, "http.proxy": false,
		"Receive.denydeletes": false, "remote.receive.url": false,
	} {
		if got := (Setting{Key: key}).IsAllowed(); got != want {
			t.Errorf("IsAllowed of %s = %v, want %v", key, got, want)
		}
	}
}

func TestInvalidJSON(t *testing.T) {
	t.Parallel()
	body, err := sample(t).Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		old, new string
		kind     fault.Kind
	}{
		{`"format":1`, `"format":2,"new":true`, fault.Unavailable},
		{`"format":1`, `"format":1,"needs":["x"]`, fault.Unavailable},
		{`"format":1`, `"format":0`, fault.Internal},
		{`"format":1,`, ``, fault.Internal},
		{`"since":41`, `"since":41,"until":42`, fault.Internal},
		{`"bytes":10,`, `"bytes":11,`, fault.Internal},
		{`"n":42`, `"n":-42`, fault.Internal},
		{`"gc":7`, `"gc":-7`, fault.Internal},
		{`"refs/tags/v1":["-"`, `"refs/tags/v1":[`, fault.Internal},
		{`"refs/tags/v1":["-"`, `"refs/tags/v1":["0000000000000000000000000000000000000000"`, fault.Internal},
		{`"team/app"`, `"/team/app"`, fault.Internal},
		{`"at":"2`, `"at":"x`, fault.Internal},
		{`sha1`, `sha3`, fault.Internal},
		{"}\n", "", fault.Internal},
		{"}\n", "}{}", fault.Internal},
	} {
		changed := bytes.Replace(body, []byte(test.old), []byte(test.new), 1)
		if bytes.Equal(changed, body) {
			t.Fatalf("%s has no %s", body, test.old)
		}
		if r, err := Decode(changed); err == nil || fault.KindOf(err) != test.kind {
			t.Errorf("%s -> %s: Decode = %+v, %v, want an error of kind %v", test.old, test.new, r, err, test.kind)
		}
	}
}

func TestTooLarge(t *testing.T) {
	t.Parallel()
	r := sample(t)
	r.Node = strings.Repeat("x", MaxRecord)
	_, err := r.Encode()
	if e, ok := errors.AsType[*TooLargeError](err); !ok || !errors.Is(err, ErrTooLarge) || e.Field != "node" {
		t.Errorf("Encode = %v, want %v because of the field node", err, ErrTooLarge)
	}
	if _, err := Decode(make([]byte, MaxRecord+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("Decode = %v, want %v", err, ErrTooLarge)
	}
}

// FuzzDecode checks that each record that can be read has one encoding, which says the same.
func FuzzDecode(f *testing.F) {
	body, err := sample(f).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body)
	f.Add([]byte(`{"at":"2026-01-01T00:00:00.000Z","format":1,"head":"HEAD","kind":"create","n":1,` +
		`"object_format":"sha256","txn":"` + txn1 + `"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		want, err := Decode(body)
		if err != nil {
			return
		}
		first, err := want.Encode()
		if errors.Is(err, ErrTooLarge) {
			return
		}
		if err != nil {
			t.Fatalf("Encode(%+v): %v", want, err)
		}
		got, err := Decode(first)
		if err != nil {
			t.Fatalf("Decode(%s): %v", first, err)
		}
		if second, err := got.Encode(); err != nil || !bytes.Equal(first, second) {
			t.Errorf("Encode = %s, %v, want %s", second, err, first)
		}
	})
}

// Records of forks, and of repositories that have forks, need a version that knows them.
func TestForkRecord(t *testing.T) {
	t.Parallel()
	lender, fork := sample(t), sample(t)
	lender.Forks = []string{txn1, txn2}
	fork.Packs[0].From = txn1
	for _, r := range []*Record{lender, fork} {
		body, err := r.Encode()
		if err != nil || !bytes.Contains(body, []byte(`"needs":["fork"]`)) {
			t.Fatalf("Encode() = %s, %v", body, err)
		}
		got, err := Decode(body)
		if err != nil || !slices.Equal(got.Forks, r.Forks) || got.Packs[0].From != r.Packs[0].From {
			t.Errorf("Decode() = %+v, %v", got, err)
		}
		if again, err := got.Next(KindPush, "n", got.At).Encode(); err != nil || !bytes.Contains(again, []byte(`"needs"`)) {
			t.Errorf("the next record is %s, %v", again, err)
		}
		if _, err := Decode(bytes.Replace(body, []byte(`"needs":["fork"],`), nil, 1)); err == nil {
			t.Error("a record without the feature that it needs was accepted")
		}
	}
	lender.Forks = []string{txn2, txn1}
	fork.Packs[0].From = "../x"
	for _, r := range []*Record{lender, fork} {
		if _, err := r.Encode(); err == nil {
			t.Errorf("Encode() of %+v succeeded", r)
		}
	}
}
