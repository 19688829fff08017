package node

import (
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

// full returns an outcome of which every field is set.
func full() Outcome {
	made := Made{Source: "git", Fallback: "filter", Select: 1, Write: 2}
	return Outcome{
		Command: protocol.CommandFetch, Agent: "git/2", Session: "s", Refs: 1, Reason: "quota",
		Fetch: FetchOutcome{Wants: 1, Haves: 2, Common: 3, Pack: "hit", Key: strings.Repeat("a", 64), Objects: 4, Bytes: 5,
			Made: made, Parse: 6, Negotiate: 7, Wait: 8, FirstByte: 9, Copy: time.Hour},
		Push:   PushOutcome{Parse: 1, Wait: 2, Warmup: 3},
		LFS:    LFSOutcome{Objects: 1, Refused: 2, Object: "o", Cache: "miss", Bytes: 3},
		Stored: Stored{Record: 1, Check: 2, Append: 3, Tries: 4, Held: true},
		Mirror: MirrorRelay, OriginTime: 1, Stale: time.Minute,
	}
}

func TestOutcomeOfAnotherProcess(t *testing.T) {
	for _, want := range []Outcome{{}, full()} {
		text := want.Encode()
		got := full()
		if err := got.Decode(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("Decode(%s) = %+v, %v, want %+v", text, got, err, want)
		}
	}
	var got Outcome
	long := `{"Reason":"` + strings.Repeat("x", 1000) + `"}`
	if err := got.Decode([]byte(long)); err != nil || len(got.Reason) != maxWord {
		t.Errorf("a reason of %d bytes, %v, want %d", len(got.Reason), err, maxWord)
	}
}

// Attrs are appended to a list that requests share, so they allocate only if it is too short.
func TestAttrsDoNotAllocate(t *testing.T) {
	o, list := full(), make([]slog.Attr, 0, 64)
	if n := testing.AllocsPerRun(100, func() { o.Attrs(list) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func BenchmarkOutcome(b *testing.B) {
	o := Outcome{Command: protocol.CommandLsRefs, Agent: "git/2.39.5", Session: "4f0d3d2c", Refs: 12}
	for b.Loop() {
		if err := o.Decode(o.Encode()); err != nil {
			b.Fatal(err)
		}
	}
}
