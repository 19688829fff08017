package protocol

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

const (
	idA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	idB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// request builds a request: "|" is a delimiter, "." a flush.
func request(lines ...string) string {
	var b []byte
	for _, l := range lines {
		switch l {
		case "|":
			b = pktline.AppendDelim(b)
		case ".":
			b = pktline.AppendFlush(b)
		default:
			b = pktline.AppendLine(b, l)
		}
	}
	return string(b)
}

// everything has all capabilities of a server.
var everything = Offer{Filter: true, RefInWant: true, SidebandAll: true, Unborn: true, Session: true, ObjectInfo: true,
	BundleURI: true}

func read(text string) (*Request, error) {
	return ReadRequest(pktline.NewReader(strings.NewReader(text)), git.SHA1, everything, Limits{})
}

// Numbers are those of C: decimal, octal, hexadecimal.
func TestNumbers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"10": 10, "010": 8, "0x1F": 31, "0X1f": 31, "+7": 7} {
		req, err := read(request("command=fetch", "|", "deepen "+text, "deepen-since "+text, "."))
		if err != nil || req.Fetch.Depth != want || req.Fetch.DeepenSince != int64(want) {
			t.Errorf("%s: %+v, %v; want %d", text, req, err, want)
		}
	}
}

func TestFetchRequest(t *testing.T) {
	req, err := read(request("command=fetch", "agent=git/2.39 x\x01", "object-format=sha1", "server-option=a=b", "|",
		"want "+idB, "want "+idA, "want "+idB, "want-ref refs/heads/main", "have "+idB, "have "+idA, "have "+idB,
		"shallow "+idA, "deepen 3", "deepen-relative", "filter combine:tree:1+blob:none", "thin-pack", "ofs-delta",
		"include-tag", "no-progress", "sideband-all", "wait-for-done", "done", "."))
	if err != nil {
		t.Fatal(err)
	}
	a, b := git.MustParseObjectID(idA), git.MustParseObjectID(idB)
	want := &Fetch{
		Wants: []git.ObjectID{a, b}, WantRefs: []git.RefName{"refs/heads/main"}, Haves: []git.ObjectID{b, a},
		Shallow: []git.ObjectID{a}, Depth: 3, DeepenRelative: true, Filter: req.Fetch.Filter,
		Done: true, WaitForDone: true, ThinPack: true, OfsDelta: true, IncludeTag: true, NoProgress: true,
		SidebandAll: true,
	}
	if !reflect.DeepEqual(req.Fetch, want) {
		t.Errorf("got  %+v\nwant %+v", req.Fetch, want)
	}
	if got := req.Fetch.Filter.String(); got != "combine:blob:none+tree:1" {
		t.Errorf("filter %q is not in canonical order, want %q", got, "combine:blob:none+tree:1")
	}
	if req.Agent != "git/2.39.x." || req.ServerOptions != 1 {
		t.Errorf("agent %q, %d server options, want %q, 1", req.Agent, req.ServerOptions, "git/2.39.x.")
	}
}

func TestBadRequestsAreTheClientsFault(t *testing.T) {
	fetch := func(lines ...string) string { return request(append([]string{"command=fetch", "|"}, lines...)...) }
	for name, text := range map[string]string{
		"no pkt-line":          "GET / HTTP/1.1",
		"length 3":             "0003",
		"too long":             "fff1",
		"no command":           request("agent=x", "."),
		"two commands":         request("command=fetch", "command=ls-refs", "."),
		"unknown command":      request("command=rm", "."),
		"unknown capability":   request("command=fetch", "colour=red", "."),
		"object format":        request("command=fetch", "object-format=sha256", "."),
		"bad object format":    request("command=fetch", "object-format=md5", "."),
		"no flush":             request("command=fetch", "|", "done"),
		"second delimiter":     fetch("|", "."),
		"short ID":             fetch("want abc", "."),
		"sha256 ID":            fetch("want "+idA+idA[:24], "."),
		"ID with more":         fetch("want "+idA+" x", "."),
		"negative deepen":      fetch("deepen -1", "."),
		"huge deepen":          fetch("deepen 99999999999", "."),
		"deepen underscore":    fetch("deepen 1_0", "."),
		"deepen binary":        fetch("deepen 0b1", "."),
		"deepen Go octal":      fetch("deepen 0o1", "."),
		"since underscore":     fetch("deepen-since 1_0", "."),
		"since binary":         fetch("deepen-since 0B1", "."),
		"binary limit":         fetch("filter blob:limit=0b1", "."),
		"deepen nothing":       fetch("deepen x", "."),
		"deepen-since":         fetch("deepen-since yesterday", "."),
		"unknown argument":     fetch("shallower", "."),
		"unknown with value":   fetch("shallower 1", "."),
		"bad want-ref":         fetch("want-ref refs/heads/a..b", "."),
		"bad filter":           fetch("filter blob:some", "."),
		"sparse path":          fetch("filter sparse:path=x", "."),
		"unescaped in combine": fetch("filter combine:blob:none+tree:1 2", "."),
		"ls-refs argument":     request("command=ls-refs", "|", "color", "."),
	} {
		t.Run(name, func(t *testing.T) {
			if req, err := read(text); !fault.Is(err, fault.Invalid) {
				t.Errorf("got %+v, %v; want an error of kind Invalid", req, err)
			}
		})
	}
}

func TestNoRequest(t *testing.T) {
	for _, text := range []string{"", "0000"} {
		if req, err := read(text); req != nil || err != nil {
			t.Errorf("%q gave %+v, %v; want nothing", text, req, err)
		}
	}
}

func TestLimits(t *testing.T) {
	limits := Limits{Wants: 1, Haves: 1, Shallow: 1, DeepenNot: 1, Capabilities: 3, FilterLength: 40, FilterDepth: 2,
		FilterMembers: 2}
	for _, text := range []string{
		request("command=fetch", "|", "want "+idA, "want "+idB, "."),
		request("command=fetch", "|", "have "+idA, "have "+idB, "."),
		request("command=fetch", "|", "shallow "+idA, "shallow "+idB, "."),
		request("command=fetch", "|", "deepen-not a", "deepen-not b", "."),
		request("command=fetch", "|", "filter tree:"+strings.Repeat("1", 50), "."),
		request("command=fetch", "|", "filter combine:tree:1+tree:2+tree:3", "."),
		request("command=fetch", "|", "filter combine:combine:combine:tree:1", "."),
		request("command=fetch", "server-option=1", "server-option=2", "server-option=3", "."),
	} {
		if _, err := ReadRequest(pktline.NewReader(strings.NewReader(text)), git.SHA1, everything,
			limits); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q gave %v, want a limit", text, err)
		}
	}
}

// A repeat counts as any other line, kept or not.
func TestRepeatsCount(t *testing.T) {
	limits := Limits{Wants: 2, Haves: 2, Shallow: 2, DeepenNot: 2}
	for _, line := range []string{"want " + idA, "have " + idA, "shallow " + idA, "want-ref refs/a", "deepen-not a"} {
		for n := 2; n <= 3; n++ {
			lines := append([]string{"command=fetch", "|"}, slices.Repeat([]string{line}, n)...)
			in := pktline.NewReader(strings.NewReader(request(append(lines, ".")...)))
			if _, err := ReadRequest(in, git.SHA1, everything, limits); (err != nil) != (n > 2) ||
				err != nil && !fault.Is(err, fault.Invalid) {
				t.Errorf("%d times %q: %v", n, line, err)
			}
		}
	}
}

func TestTooManyPrefixesMeanAllRefs(t *testing.T) {
	for name, prefixes := range map[string][]string{
		"many": slices.Repeat([]string{"x"}, maxPrefixes+1),
		"long together": slices.Repeat([]string{strings.Repeat("x", git.MaxRefName)},
			maxPrefixBytes/git.MaxRefName+1),
		"one is too long": {"refs/heads/", strings.Repeat("x", git.MaxRefName+1), "refs/tags/"},
	} {
		lines := []string{"command=ls-refs", "|"}
		for _, p := range prefixes {
			lines = append(lines, "ref-prefix "+p)
		}
		req, err := read(request(append(lines, ".")...))
		if err != nil || len(req.LsRefs.Prefixes) != 0 {
			t.Errorf("%s: %d prefixes, %v", name, len(req.LsRefs.Prefixes), err)
		}
	}
}

// repeats is a reader that returns one text many times, at no cost for the sender.
type repeats struct {
	text string
	n    int
	left string
}

func (r *repeats) Read(p []byte) (int, error) {
	if r.left == "" {
		if r.n == 0 {
			return 0, io.EOF
		}
		r.n, r.left = r.n-1, r.text
	}
	n := copy(p, r.left)
	r.left = r.left[n:]
	return n, nil
}

// TestRepeatsTakeNoMemory checks that repeated arguments of a request take no memory.
func TestRepeatsTakeNoMemory(t *testing.T) {
	const many = 300_000
	long := strings.Repeat("x", 65000)
	for name, test := range map[string]struct {
		head, line, tail string
		n                int
	}{
		"one want": {request("command=fetch", "|"), request("want " + idA), request("done", "."), many},
		"two wants": {request("command=fetch", "|"), request("want "+idA, "want "+idB),
			request("done", "."), many},
		"two want-refs": {request("command=fetch", "|"), request("want-ref refs/heads/a", "want-ref refs/heads/b"),
			request("done", "."), many},
		"two shallows": {request("command=fetch", "|"), request("shallow "+idA, "shallow "+idB),
			request("done", "."), 50_000},
		"one have":       {request("command=fetch", "|"), request("have " + idA), request("done", "."), many},
		"server options": {request("command=fetch"), request("server-option=" + long), request("|", "done", "."), 990},
		"prefixes":       {request("command=ls-refs", "|"), request("ref-prefix " + long), request("."), 1020},
	} {
		in := io.MultiReader(strings.NewReader(test.head), &repeats{text: test.line, n: test.n},
			strings.NewReader(test.tail))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		req, err := ReadRequest(pktline.NewReader(in), git.SHA1, everything, Limits{})
		runtime.ReadMemStats(&after)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 {
			t.Errorf("%s: %d bytes allocated for %d bytes", name, used, len(test.line)*test.n)
		}
		runtime.KeepAlive(req)
	}
}

// Repeats between many others are dropped all the same, and the lines are counted with them.
func TestManyWants(t *testing.T) {
	const distinct = 10_000
	var lines []string
	for i := range 3 * distinct {
		lines = append(lines, fmt.Sprintf("want %040x", i*7919%distinct))
	}
	text := request(append(append([]string{"command=fetch", "|"}, lines...), ".")...)
	req, err := read(text)
	if err != nil || len(req.Fetch.Wants) != distinct || !slices.IsSortedFunc(req.Fetch.Wants, git.ObjectID.Compare) {
		t.Fatalf("%d wants, %v", len(req.Fetch.Wants), err)
	}
	if _, err := ReadRequest(pktline.NewReader(strings.NewReader(text)), git.SHA1, everything,
		Limits{Wants: 3*distinct - 1}); !fault.Is(err, fault.Invalid) {
		t.Errorf("one line more than allowed gave %v", err)
	}
}

func TestErrorsOfTheStreamStay(t *testing.T) {
	busy := fault.New(fault.Exhausted, "no memory")
	for _, text := range []string{"", request("command=fetch", "|")} {
		_, err := ReadRequest(pktline.NewReader(io.MultiReader(strings.NewReader(text), iotest.ErrReader(busy))),
			git.SHA1, everything, Limits{})
		if !fault.Is(err, fault.Exhausted) {
			t.Errorf("after %q: %v", text, err)
		}
	}
}

func TestFilterForms(t *testing.T) {
	for spec, want := range map[string]string{
		"blob:none":                       "blob:none",
		"blob:limit=1k":                   "blob:limit=1024",
		"blob:limit=2G":                   "blob:limit=2147483648",
		"tree:0":                          "tree:0",
		"object:type=commit":              "object:type=commit",
		"sparse:oid=main:a b":             "sparse:oid=main:a b",
		"combine:tree:3":                  "tree:3",
		"combine:tree:3+blob:none+tree:3": "combine:blob:none+tree:3",
		"combine:combine:tree:1%2bblob:none+sparse:oid=a%20b": "combine:blob:none+sparse:oid=a%20b+tree:1",
		"combine:sparse:oid=a%2525b+tree:1":                   "combine:sparse:oid=a%2525b+tree:1",
		"combine:%62lob:none+object:type=tree":                "combine:blob:none+object:type=tree",
	} {
		f, err := ParseFilter(spec, Limits{})
		if err != nil || f.String() != want {
			t.Errorf("%q gave %q, %v; want %q", spec, f, err, want)
		}
	}
}

func TestErrorPacketHoldsNoControlCharacters(t *testing.T) {
	got := string(AppendError(nil, "no\x1b[31m such\nref\x00"))
	if got != "0019ERR no [31m such ref " {
		t.Errorf("got %q, want %q", got, "0019ERR no [31m such ref ")
	}
}

func FuzzReadRequest(f *testing.F) {
	f.Add(request("command=ls-refs", "agent=git/2.39", "|", "peel", "symrefs", "ref-prefix refs/heads/", "unborn", "."))
	f.Add(request("command=fetch", "|", "want "+idA, "have "+idB, "shallow "+idA, "deepen 1", "filter blob:none",
		"done", "."))
	f.Add(request("command=fetch", "|", "want-ref refs/heads/main", "deepen-since 1", "deepen-not x", "."))
	f.Add(request("command=object-info", "|", "size", "oid "+idA, "."))
	f.Add(request("command=bundle-uri", "session-id=x", "|", "."))
	f.Add("0000")
	f.Add("0014command=ls-refs\n0001")
	f.Fuzz(func(t *testing.T, text string) {
		req, err := ReadRequest(pktline.NewReader(strings.NewReader(text)), git.SHA1, everything, Limits{})
		if err != nil && !fault.Is(err, fault.Invalid) {
			t.Errorf("an error of another kind than Invalid: %v", err)
		}
		if req == nil {
			return
		}
		commands := 0
		for _, is := range []bool{req.LsRefs != nil, req.Fetch != nil, req.ObjectInfo != nil, req.BundleURI} {
			if is {
				commands++
			}
		}
		if commands != 1 {
			t.Errorf("%d commands, want 1", commands)
		}
	})
}

// FuzzFilter checks that the canonical form of a filter parses to itself.
func FuzzFilter(f *testing.F) {
	for _, s := range []string{"blob:none", "blob:limit=1k", "tree:2", "sparse:oid=x:y", "object:type=tag",
		"combine:blob:none+tree:0",
		"combine:combine:a%2bb+tree:1", "combine:sparse:oid=%25"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		filter, err := ParseFilter(s, Limits{})
		if err != nil {
			return
		}
		again, err := ParseFilter(filter.String(), Limits{FilterLength: 1 << 20})
		if err != nil || again.String() != filter.String() {
			t.Errorf("%q became %q, and that %q (%v)", s, filter, again, err)
		}
	})
}

func FuzzPktline(f *testing.F) {
	f.Add([]byte("0006a\n00000001000200041234"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := pktline.NewReader(bytes.NewReader(in))
		var out []byte
		for {
			typ, p, err := r.Next()
			if err != nil {
				if err == io.EOF && !strings.EqualFold(string(out), string(in)) {
					t.Errorf("%q was read as %q", in, out)
				}
				return
			}
			switch typ {
			case pktline.Data:
				out = pktline.Append(out, p)
			case pktline.Flush:
				out = pktline.AppendFlush(out)
			case pktline.Delim:
				out = pktline.AppendDelim(out)
			case pktline.ResponseEnd:
				out = pktline.AppendResponseEnd(out)
			}
		}
	})
}
