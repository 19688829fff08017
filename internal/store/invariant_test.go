package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// history is a random history of one repository: pushes, checkpoints, compactions and collections of garbage on several
// nodes, in steps that overlap, while the clock of the store jumps.
type history struct {
	t        *testing.T
	memory   *buckettest.Memory
	random   *rand.Rand
	id       string
	nodes    []*repository
	begun    []func()            // second steps of what has begun
	head     *replog.Record      // the last record that was checked
	refs     map[string]string   // all refs by name after head, from the changes of all records
	kinds    map[replog.Kind]int // records that were checked
	careless bool                // pushes do not upload again after a collection of garbage
}

// step makes one random step. A step that fails because of a fault of the store is a crash of what it belongs to.
func (h *history) step() {
	node := h.nodes[h.random.IntN(len(h.nodes))]
	switch h.random.IntN(10) {
	case 0, 1, 2:
		h.push(node)
	case 3:
		h.checkpoint(node)
	case 4:
		h.compact(node)
	case 5:
		h.collect()
	case 6:
		days := time.Duration(h.random.IntN(61)-30) * 24 * time.Hour
		h.memory.SetFaults(buckettest.Faults{ClockSkew: days, LostAnswers: .02, LateWrites: .02, DoubledWrites: .02})
	default:
		if len(h.begun) > 0 {
			i := h.random.IntN(len(h.begun))
			f := h.begun[i]
			h.begun = slices.Delete(h.begun, i, i+1)
			if h.random.IntN(10) > 0 { // otherwise the node crashes
				f()
			}
		}
	}
	time.Sleep(time.Duration(h.random.IntN(5)) * time.Second)
}

// put uploads a new pack.
func (h *history) put() (replog.Pack, error) {
	body := []byte{1}
	p := replog.Pack{Key: replog.PackKey("pack-1", replog.NewID()), Bytes: 1, SHA256: sha256.Sum256(body), IdxBytes: 1,
		IdxSHA256: sha256.Sum256(body)}
	for _, f := range p.Files() {
		key := "repos/" + h.id + "/" + p.Key + f.Ext
		if err := h.memory.Put(context.Background(), key, bytes.NewReader(body), 1, f.SHA256); err != nil {
			return p, err
		}
	}
	return p, nil
}

// push uploads a pack, and later appends a record with the pack and a ref.
func (h *history) push(r *repository) {
	head, err := r.current(context.Background())
	if err != nil {
		return
	}
	gc := head.record.GC
	pack, err := h.put()
	if err != nil {
		return
	}
	name := git.RefName(fmt.Sprintf("refs/heads/%d", h.random.IntN(10)))
	id := git.MustParseObjectID(fmt.Sprintf("%040x", h.random.Uint32()|1))
	h.begun = append(h.begun, func() {
		_, _ = r.change(context.Background(), func(head *state) (*replog.Record, error) {
			if head.record.GC != gc && !h.careless {
				gc = head.record.GC
				if pack, err = h.put(); err != nil {
					return nil, err
				}
			}
			next := head.record.Next(replog.KindPush, "", time.Now())
			pack.Since = next.Number
			next.Packs = append(next.Packs, pack)
			next.Refs.Tail = append(next.Refs.Tail, replog.TailEntry{Number: next.Number,
				Changes: []replog.RefChange{{Name: name, New: id}}})
			return next, nil
		})
	})
}

func (h *history) checkpoint(r *repository) {
	head, err := r.current(context.Background())
	if err != nil || len(head.record.Refs.Tail) == 0 {
		return
	}
	c, err := r.writeCheckpoint(context.Background(), head, nil)
	if err != nil {
		return
	}
	h.begun = append(h.begun, func() {
		defer c.close()
		_ = r.publishUploaded(context.Background(), c)
	})
}

func (h *history) compact(r *repository) {
	head, err := r.current(context.Background())
	if err != nil || len(head.record.Packs) == 0 {
		return
	}
	c := &compaction{repository: r, head: head, dir: h.t.TempDir()}
	for i := range head.record.Packs {
		if h.random.IntN(2) == 0 {
			c.removed = append(c.removed, head.record.Packs[i].Key)
		}
	}
	pack, err := h.put()
	if err != nil {
		return
	}
	c.added = []replog.Pack{pack}
	h.begun = append(h.begun, func() { _ = c.publish(context.Background()) })
}

// collect collects garbage in three steps, which other collections can interrupt.
func (h *history) collect() {
	ctx := context.Background()
	c := newCollector(h.memory, GCOptions{OlderThan: time.Duration(h.random.IntN(14*24)) * time.Hour})
	log := replog.Open(h.memory, h.id)
	head, err := log.Head(ctx)
	if err != nil {
		return
	}
	files, err := c.files(ctx, h.id)
	if err != nil {
		return
	}
	keys, err := c.garbage(ctx, log, h.id, head, files)
	if err != nil {
		return
	}
	h.begun = append(h.begun, func() {
		if head, err = c.condemn(ctx, log, h.id, head, keys); err != nil {
			return
		}
		h.begun = append(h.begun, func() { _, _ = c.remove(ctx, log, h.id, head) })
	})
}

var errGone = errors.New("a key of the head does not exist")

// check checks the records that are new: each key of the head exists, and its refs are the result of all changes.
func (h *history) check() error {
	ctx := context.Background()
	keys := map[string]bool{}
	for _, key := range h.memory.Keys() {
		keys[key] = true
	}
	for {
		next := h.nodes[0].log.Key(h.head.Number + 1)
		if !keys[next] {
			break
		}
		body, _, err := h.memory.Get(ctx, next, replog.MaxRecord)
		if err != nil {
			return err
		}
		if h.head, err = replog.Decode(body); err != nil {
			return err
		}
		h.kinds[h.head.Kind]++
		if tail := h.head.Refs.Tail; h.head.Kind == replog.KindPush {
			for _, c := range tail[len(tail)-1].Changes {
				h.refs[string(c.Name)] = c.New.String()
			}
		}
	}
	for i := range h.head.Packs {
		for _, f := range h.head.Packs[i].Files() {
			if key := h.head.Packs[i].Key + f.Ext; !keys["repos/"+h.id+"/"+key] {
				return fmt.Errorf("record %d: %w: %s", h.head.Number, errGone, key)
			}
		}
	}
	refs := map[string]string{}
	if key := h.head.Refs.Checkpoint; key != "" {
		body, _, err := h.memory.Get(ctx, "repos/"+h.id+"/"+key, 1<<20)
		if err != nil {
			return fmt.Errorf("record %d: %w: %s", h.head.Number, errGone, key)
		}
		for line := range strings.Lines(string(body)) {
			if id, name, ok := strings.Cut(strings.TrimSpace(line), " "); ok && id != "#" {
				refs[name] = id
			}
		}
		if len(refs) != h.head.Refs.Count {
			return fmt.Errorf("record %d: %d refs in the checkpoint, want %d", h.head.Number, len(refs), h.head.Refs.Count)
		}
	}
	for _, ref := range fold(h.head.Refs.Tail) {
		refs[string(ref.Name)] = ref.ID.String()
	}
	if !maps.Equal(refs, h.refs) {
		return fmt.Errorf("record %d: the refs are %v, want %v", h.head.Number, refs, h.refs)
	}
	return nil
}

// newHistory returns a repository with two nodes.
func newHistory(t *testing.T, seed uint64) *history {
	h := &history{t: t, memory: newBucket(t), random: rand.New(rand.NewPCG(seed, 4)), head: &replog.Record{},
		refs: map[string]string{}, kinds: map[replog.Kind]int{}}
	for range 2 {
		s := newNode(t, h.memory)
		if h.id == "" {
			h.id = create(t, s, "x")
		}
		r := s.acquire(h.id)
		t.Cleanup(func() { s.release(r) })
		h.nodes = append(h.nodes, r)
	}
	return h
}

func (h *history) run(steps int) error {
	for range steps {
		h.step()
		if err := h.check(); err != nil {
			return err
		}
	}
	return nil
}

// No key that a head names is ever deleted.
func TestKeysOfTheHeadExist(t *testing.T) {
	t.Parallel()
	seeds, steps := uint64(25), 400
	if testing.Short() {
		seeds, steps = 3, 150
	}
	kinds := map[replog.Kind]int{}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			h := newHistory(t, seed)
			if err := h.run(steps); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			for kind, n := range h.kinds {
				kinds[kind] += n
			}
		})
	}
	for _, kind := range []replog.Kind{replog.KindPush, replog.KindCheckpoint, replog.KindCompact, replog.KindCondemn,
		replog.KindClear} {
		if kinds[kind] == 0 && !testing.Short() {
			t.Errorf("no history has a record of the kind %s", kind)
		}
	}
}

// Pushes that do not upload again after a collection of garbage lose objects, and the test detects it.
func TestCarelessPush(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	for seed := range uint64(20) {
		var err error
		synctest.Test(t, func(t *testing.T) {
			h := newHistory(t, seed)
			h.careless = true
			err = h.run(300)
		})
		if errors.Is(err, errGone) {
			return
		}
	}
	t.Error("no history lost an object, want one")
}
