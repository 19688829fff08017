package store

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// The error of a record that is too large names its cause.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	s := newNode(t, newBucket(t))
	create(t, s, "x")
	p := newPusher(t, s, "x")
	for _, test := range []struct {
		change func(*replog.Record)
		kind   fault.Kind
		want   string
	}{
		{func(r *replog.Record) {
			for i := range 2000 {
				r.Packs = append(r.Packs, replog.Pack{Key: replog.PackKey(fmt.Sprintf("pack-%d", i), replog.NewID()), Since: 1})
			}
		}, fault.Unavailable, "too many packs"},
		{func(r *replog.Record) {
			entry := replog.TailEntry{Number: r.Number}
			for i := range 4000 {
				ref := git.RefName(fmt.Sprintf("refs/heads/%04d", i))
				entry.Changes = append(entry.Changes, replog.RefChange{Name: ref, New: id1})
			}
			r.Refs.Tail = append(r.Refs.Tail, entry)
		}, fault.Unavailable, "too many refs"},
		{func(r *replog.Record) {
			r.Config = []replog.Setting{{Key: "receive.x", Value: strings.Repeat("x", replog.MaxRecord)}}
		}, fault.Invalid, `"config"`},
		{func(r *replog.Record) {
			for i := range 2000 {
				r.Names = append(r.Names, repoPath(fmt.Sprintf("y%s/%04d", strings.Repeat("y", 200), i)))
			}
		}, fault.Invalid, `"names"`},
	} {
		_, err := p.place.change(t.Context(), func(head *state) (*replog.Record, error) {
			next := head.record.Next(replog.KindConfigure, "n", time.Now())
			test.change(next)
			return next, nil
		})
		if !fault.Is(err, test.kind) || !mentions(err, test.want) {
			t.Errorf("change = %v, want %v with %q", err, test.kind, test.want)
		}
	}
}

// longRefs returns updates that create refs with names of about 1 KB.
func longRefs(n int, char string) (updates []receivepack.Update) {
	for i := range n {
		name := fmt.Sprintf("%04d", i) + strings.Repeat("/"+strings.Repeat(char, 200), 5)
		updates = append(updates, update(name, 0, 1))
	}
	return updates
}

// fill gives the repository so many packs that its record has about this many bytes.
func (p *pusher) fill(bytes int) {
	p.t.Helper()
	_, err := p.place.change(p.t.Context(), func(head *state) (*replog.Record, error) {
		next := head.record.Next(replog.KindConfigure, "n", time.Now())
		for i := 0; ; i++ {
			body, err := next.Encode()
			if err != nil || len(body) > bytes-5000 {
				return next, err
			}
			for j := range 10 { // of about 350 bytes
				name := fmt.Sprintf("pack-%d-%d", i, j)
				pack := replog.Pack{Key: replog.PackKey(name, replog.NewID()), SHA256: replog.Sum{byte(i), byte(j)}}
				next.Packs = append(next.Packs, pack)
			}
		}
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

// Names that JSON makes longer count with their length there, and a push that needs a checkpoint gets one.
func TestCommitLongRefs(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		filled  int // size of the record before
		updates []receivepack.Update
	}{
		{"not UTF-8", 0, longRefs(100, "\xff")},
		{"quoted", 0, longRefs(120, `"`)},
		{"many packs", 200 << 10, longRefs(100, "x")},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newNode(t, newBucket(t))
			create(t, s, "x")
			p := newPusher(t, s, "x")
			p.fill(test.filled)
			result, err := p.push(nil, test.updates...)
			if refused := reasons(result.Refused); err != nil || strings.Trim(refused, "|") != "" {
				t.Fatalf("Commit() refused %q, %v, want success", refused, err)
			}
			refs := p.place.known().record.Refs
			if refs.Count != len(test.updates) || len(refs.Tail) != 0 {
				t.Errorf("%d refs in the checkpoint and a tail of %d, want %d and none", refs.Count, len(refs.Tail),
					len(test.updates))
			}
		})
	}
}

// A push that does not fit into a record does not fail the others of its batch.
func TestTooLargePushInABatch(t *testing.T) {
	t.Parallel()
	s := newNode(t, newBucket(t))
	create(t, s, "x")
	p := newPusher(t, s, "x")
	p.fill(replog.MaxRecord)
	base := p.place.known()
	large := p.pending(base, update("large", 0, 1))
	for i := range 30 {
		pack := replog.Pack{Key: replog.PackKey(fmt.Sprintf("pack-%d", i), replog.NewID()), SHA256: replog.Sum{255, byte(i)}}
		large.shadow.uploads = append(large.shadow.uploads, &packUpload{result: pack})
	}
	batch := []*pendingPush{p.pending(base, update("a", 0, 2)), large, p.pending(base, update("b", 0, 3)),
		p.pending(base, update("c", 0, 4))}
	p.place.commitBatch(batch, false)
	for i, push := range batch {
		if (push.err != nil) != (push == large) {
			t.Errorf("push %d has the error %v, want one only for push 1", i, push.err)
		}
	}
	if !fault.Is(large.err, fault.Unavailable) || !mentions(large.err, "too many packs") {
		t.Errorf("the error of the large push is %v, want too many packs", large.err)
	}
	if got, want := p.values(), "a=2 b=3 c=4"; got != want {
		t.Errorf("refs are %q, want %q", got, want)
	}
}
