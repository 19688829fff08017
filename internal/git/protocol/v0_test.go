package protocol

import (
	"reflect"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

func readNeeds(text string, limits Limits) (*Needs, error) {
	return ReadNeeds(pktline.NewReader(strings.NewReader(text)), git.SHA1, everything, limits)
}

func TestParseVersion(t *testing.T) {
	for header, want := range map[string]Version{
		"": V0, "version=0": V0, "version=1": V1, "version=2": V2, "version=1:version=2": V2, "version=2:version=1": V2,
		"a:version=1:b=c": V1,
		"version=3":       V0, "version=3:version=1": V1, "version=": V0, "version=02": V0, "version=2 ": V0,
		"Version=2": V0,
		"::":        V0, "version=22": V0,
	} {
		if got := ParseVersion(header); got != want {
			t.Errorf("%q asks for %v, want %v", header, got, want)
		}
	}
}

func TestNeeds(t *testing.T) {
	got, err := readNeeds(request(
		"want "+idB+" multi_ack_detailed no-done side-band-64k thin-pack ofs-delta include-tag no-progress "+
			"deepen-relative filter agent=git/2\x01 session-id=7",
		"want "+idA, "want "+idB, "shallow "+idA, "deepen 3", "filter blob:none", "."), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	a, b := git.MustParseObjectID(idA), git.MustParseObjectID(idB)
	want := &Needs{
		Fetch: Fetch{
			Wants: []git.ObjectID{a, b}, Shallow: []git.ObjectID{a}, Depth: 3, DeepenRelative: true, Filter: got.Filter,
			ThinPack: true, OfsDelta: true, IncludeTag: true, NoProgress: true,
		},
		Agent: "git/2.", SessionID: "7", Acks: MultiAckDetailed, NoDone: true, Sideband: Sideband64k, MayFilter: true,
	}
	if !reflect.DeepEqual(got, want) || got.Filter.String() != "blob:none" {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	for features, want := range map[string]Needs{
		"":                                  {},
		"multi_ack side-band":               {Acks: MultiAck, Sideband: SidebandMini},
		"multi_ack multi_ack_detailed":      {Acks: MultiAckDetailed},
		"multi_ack_detailed multi_ack":      {Acks: MultiAckDetailed},
		"side-band-64k side-band":           {Sideband: Sideband64k},
		"multi_ack=1 side-band=":            {Acks: MultiAck, Sideband: SidebandMini},
		"multi_acks xside-band side-band-6": {},
	} {
		got, err := readNeeds(request("want "+idA+" "+features, "."), Limits{})
		if err != nil || got.Acks != want.Acks || got.Sideband != want.Sideband {
			t.Errorf("%q: %+v, %v", features, got, err)
		}
	}
}

func TestHaves(t *testing.T) {
	id := git.MustParseObjectID(idA)
	r := NewHaveReader(pktline.NewReader(strings.NewReader(request("have "+idA, ".", "|", "have "+idA, "done"))),
		git.SHA1, Limits{})
	for i, want := range []Turn{TurnHave, TurnFlush, TurnFlush, TurnHave, TurnDone} {
		turn, got, err := r.Next()
		if err != nil || turn != want || (turn == TurnHave) != (got == id) {
			t.Errorf("turn %d: %v, %v, %v", i, turn, got, err)
		}
	}
	if _, _, err := r.Next(); !fault.Is(err, fault.Invalid) {
		t.Errorf("the end of the stream in the middle: %v", err)
	}
	for _, text := range []string{"", "00", "0032have"} {
		r := NewHaveReader(pktline.NewReader(strings.NewReader(text)), git.SHA1, Limits{})
		if turn, _, err := r.Next(); err != nil || turn != TurnEnd {
			t.Errorf("%q: %v, %v; want the end", text, turn, err)
		}
	}
}

func TestLimitsOfNeeds(t *testing.T) {
	limits := Limits{Wants: 2, Haves: 2, Shallow: 2, DeepenNot: 1, FilterLength: 10}
	for name, text := range map[string]string{
		"wants":      request("want "+idA, "want "+idA, "want "+idA, "."),
		"shallow":    request("shallow "+idA, "shallow "+idA, "shallow "+idA, "."),
		"deepen-not": request("deepen-not a", "deepen-not b", "."),
		"filter":     request("want "+idA+" filter", "filter blob:limit=100", "."),
	} {
		if _, err := readNeeds(text, limits); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v, want a limit", name, err)
		}
	}
	r := NewHaveReader(pktline.NewReader(strings.NewReader(request("have "+idA, "have "+idA, "have "+idA))),
		git.SHA1, limits)
	for i := range 3 {
		if _, _, err := r.Next(); fault.Is(err, fault.Invalid) != (i == 2) {
			t.Errorf("have %d: %v", i, err)
		}
	}
}

// FuzzConversation checks that any input ends with the reader's own error.
func FuzzConversation(f *testing.F) {
	f.Add(request("want "+idA+" multi_ack_detailed no-done side-band-64k agent=x", "shallow "+idB, "deepen 1", ".",
		"have "+idB, ".", "done"))
	f.Add(request("want "+idA+" filter", "filter tree:1", "deepen-since 1", "deepen-not x", "|", "have "+idA, "/",
		"done"))
	f.Add(request("deepen 0x7fffffff", "want "+idA, ".") + "0004")
	f.Add("0000")
	f.Fuzz(func(t *testing.T, text string) {
		in := pktline.NewReader(strings.NewReader(text))
		needs, err := ReadNeeds(in, git.SHA1, everything, Limits{})
		if err != nil && !fault.Is(err, fault.Invalid) {
			t.Errorf("an error of another kind than Invalid: %v", err)
		}
		if err != nil {
			return
		}
		if len(needs.Haves)+len(needs.WantRefs) > 0 || needs.Done || needs.SidebandAll || needs.WaitForDone {
			t.Errorf("%+v holds what version 0 does not know", needs)
		}
		haves := NewHaveReader(in, git.SHA1, Limits{})
		for {
			turn, _, err := haves.Next()
			if err != nil && !fault.Is(err, fault.Invalid) {
				t.Errorf("an error of another kind than Invalid: %v", err)
			}
			if err != nil || turn == TurnDone || turn == TurnEnd {
				return
			}
		}
	})
}
