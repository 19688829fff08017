package replog_test

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"testing"
)

// This file checks a model of a store exhaustively: every order of the steps of a few nodes, of requests that land
// late, twice or never, and of crashes. A node that crashes takes no further step, and requests that it has sent may
// still land. So each state in which a node stops is one that is visited anyway.
//
// The actors are pushes, a compaction, a checkpoint and collections of garbage. Sets of up to eight things are bits.

type set = uint8

// modelRecord is a record. Pushes have the numbers 0 and 1, and each changes one ref.
type modelRecord struct {
	writer, parent uint8 // attempts
	packs          set   // keys
	condemned      set   // keys
	gc             uint8
	refs, tail     set // pushes: the refs of the checkpoint, and those of the tail
	pushes         set // for the check: all pushes so far
}

// modelAttempt is an attempt to append a record. Its PUT may land at any time.
type modelAttempt struct {
	record   modelRecord
	number   uint8
	actor    uint8
	reported uint8 // 0: the node does not know the outcome yet
}

const (
	reportedWon = iota + 1
	reportedLost
)

type modelActor struct {
	step  uint8
	known uint8 // the record that the node knows as the head
	gc    uint8 // Record.GC when the upload began
	key   uint8 // of its upload; for a collection: the condemned key
	old   set   // keys to replace; the tail to fold
	tries uint8

	won, lost uint8 // the step after the outcome of the attempt
}

const (
	stepBegin  = iota
	stepCommit // the upload is there: append
	stepWait   // for the outcome of an attempt
	stepDelete // the record with the condemned key is there: delete it
	stepClear  // the deletion was confirmed: append a record without the condemned key
	stepEnd
)

const (
	maxActors   = 4
	maxRecords  = 6
	maxAttempts = 6
	maxKeys     = 8
)

// world is one state of the model.
type world struct {
	log      [maxRecords + 1]modelRecord // from 1
	head     uint8
	attempts [maxAttempts]modelAttempt
	actors   [maxActors]modelActor
	kinds    [maxActors]uint8
	exists   set            // keys of objects
	latePuts set            // uploads that were sent again and may land
	lateGone set            // deletions that may land, perhaps again
	contents [maxKeys]uint8 // pushes by key
	usedKeys uint8
}

const (
	kindPush0 = iota
	kindPush1
	kindCompact
	kindCheckpoint
	kindCollect
)

// mutation is a mistake. The model has to show that it breaks an invariant.
type mutation int

const (
	noMutation       mutation = iota
	naiveClient               // an unclear answer is reported as a failure
	ignoredGC                 // a push does not upload again after a collection
	checkedKey                // a push uploads again only if its key does not exist
	reusedKey                 // a push uploads again under the same key
	deletedFirst              // keys are deleted before the record that condemns them
	uncheckedCondemn          // after a lost attempt, keys are condemned that are in use by then
	uncheckedReplace          // a compaction replaces all packs of the head
	foldedTooMuch             // a checkpoint drops the changes that came after it was made
	deletedRecords            // old records are deleted, so that their numbers are free again
	ignoredCondition          // the store overwrites a record
	guessedNumber             // a node takes the next number without reading the record before it
)

// model explores all states.
type model struct {
	mutation mutation
	seed     maphash.Seed
	visited  map[uint64]struct{}
	path     []string
	failure  string
}

func explore(kinds []uint8, m mutation) *model {
	x := &model{mutation: m, seed: maphash.MakeSeed(), visited: map[uint64]struct{}{}}
	w := world{head: 1, exists: 1, usedKeys: 1}
	w.log[1] = modelRecord{writer: 255, packs: 1}
	for i := range w.kinds {
		w.kinds[i] = 255
		if i < len(kinds) {
			w.kinds[i] = kinds[i]
		}
	}
	x.visit(&w)
	return x
}

func (x *model) visit(w *world) {
	if x.failure != "" {
		return
	}
	w.forget(x.mutation)
	hash := maphash.Comparable(x.seed, *w)
	if _, ok := x.visited[hash]; ok {
		return
	}
	x.visited[hash] = struct{}{}
	if broken := w.broken(); broken != "" {
		x.failure = broken + ":\n  " + strings.Join(x.path, "\n  ")
		return
	}
	for i := range w.attempts {
		x.land(w, i)
	}
	for i := range w.actors {
		x.act(w, i)
	}
	for key := range uint8(maxKeys) {
		if w.latePuts&(1<<key) != 0 {
			x.step(w, fmt.Sprintf("the upload of key %d lands again", key), func(w *world) {
				w.exists |= 1 << key
				w.latePuts &^= 1 << key
			})
		}
		if w.lateGone&w.exists&(1<<key) != 0 {
			x.step(w, fmt.Sprintf("a deletion of key %d lands", key), func(w *world) { w.exists &^= 1 << key })
		}
	}
}

// step visits the state after a change.
func (x *model) step(w *world, name string, change func(w *world)) {
	next := *w
	change(&next)
	x.path = append(x.path, name)
	x.visit(&next)
	x.path = x.path[:len(x.path)-1]
}

// forget removes attempts that cannot change anything any more, so that equal states are the same.
func (w *world) forget(m mutation) {
	if m == deletedRecords || m == ignoredCondition {
		return
	}
	var left [maxAttempts]modelAttempt
	n := 0
	for _, a := range w.attempts {
		if a.number == 0 || a.number <= w.head && a.reported != 0 && w.isRight(&a) {
			continue
		}
		left[n] = a
		n++
	}
	w.attempts = left
}

// isRight reports whether the reported outcome of an attempt is true.
func (w *world) isRight(a *modelAttempt) bool {
	isInLog := a.number <= w.head && w.log[a.number].writer == a.record.writer
	switch a.reported {
	case reportedWon:
		return isInLog
	case reportedLost:
		return !isInLog
	}
	return true
}

// broken returns the invariant that does not hold, or "".
func (w *world) broken() string {
	for i := range w.attempts {
		if !w.isRight(&w.attempts[i]) {
			return "a reported outcome contradicts the log"
		}
	}
	head := &w.log[w.head]
	objects := set(0)
	for key := range uint8(maxKeys) {
		if head.packs&(1<<key) != 0 {
			objects |= w.contents[key]
		}
	}
	switch {
	case w.head > 1 && head.parent != w.log[w.head-1].writer:
		return "the log is not a chain"
	case head.packs&^w.exists != 0:
		return "a key of the head does not exist"
	case head.packs&head.condemned != 0:
		return "a key in use is condemned"
	case objects&head.pushes != head.pushes:
		return "the packs do not have the objects of a push"
	case head.refs|head.tail != head.pushes:
		return "the refs do not have a push"
	}
	return ""
}

// land lets the PUT of an attempt land.
func (x *model) land(w *world, i int) {
	a := &w.attempts[i]
	switch {
	case a.number == 0:
	case a.number == w.head+1:
		x.step(w, fmt.Sprintf("record %d of actor %d lands", a.number, a.actor), func(w *world) {
			w.head++
			w.log[w.head] = w.attempts[i].record
		})
	case x.mutation == ignoredCondition && a.number == w.head && w.log[a.number].writer != a.record.writer:
		x.step(w, fmt.Sprintf("record %d of actor %d overwrites another", a.number, a.actor), func(w *world) {
			w.log[a.number] = w.attempts[i].record
		})
	case x.mutation == deletedRecords && a.number < w.head && a.reported == 0:
		x.step(w, fmt.Sprintf("record %d of actor %d takes a deleted number", a.number, a.actor), func(w *world) {
			w.attempts[i].reported = reportedWon
		})
	}
}

// act lets an actor take each step that it can take.
func (x *model) act(w *world, i int) {
	a := &w.actors[i]
	if w.kinds[i] == 255 || a.step == stepEnd {
		return
	}
	name := func(what string) string { return fmt.Sprintf("actor %d (kind %d) %s", i, w.kinds[i], what) }
	if a.known < w.head && (a.step == stepBegin || a.step == stepCommit || a.step == stepClear) {
		x.step(w, name(fmt.Sprintf("reads the head %d", w.head)), func(w *world) { w.actors[i].known = w.head })
	}
	if a.known == 0 {
		return
	}
	switch a.step {
	case stepBegin:
		x.begin(w, i, name)
	case stepCommit, stepClear:
		x.commit(w, i, name)
	case stepWait:
		x.decide(w, i, name)
	case stepDelete:
		x.step(w, name("deletes"), func(w *world) {
			w.lateGone |= 1 << a.key
			w.exists &^= 1 << a.key
			w.actors[i].step = stepClear
		})
	}
}

// begin begins the work of an actor: mostly an upload.
func (x *model) begin(w *world, i int, name func(string) string) {
	a, head := &w.actors[i], &w.log[w.actors[i].known]
	switch w.kinds[i] {
	case kindPush0, kindPush1:
		x.step(w, name("uploads"), func(w *world) { w.upload(i, 1<<w.kinds[i]) })
	case kindCompact:
		contents := set(0)
		for key := range uint8(maxKeys) {
			if head.packs&(1<<key) != 0 {
				contents |= w.contents[key]
			}
		}
		x.step(w, name("uploads"), func(w *world) {
			w.actors[i].old = head.packs
			w.upload(i, contents)
		})
	case kindCheckpoint:
		if head.tail != 0 {
			x.step(w, name("uploads"), func(w *world) { w.actors[i].old, w.actors[i].step = head.tail, stepCommit })
		}
	case kindCollect:
		for key := range w.usedKeys {
			bit := set(1) << key
			switch {
			case head.condemned&bit != 0: // of a node that crashed
				x.step(w, name(fmt.Sprintf("finds the condemned key %d", key)), func(w *world) {
					w.actors[i].key, w.actors[i].step = key, stepDelete
				})
			case w.exists&bit != 0 && head.packs&bit == 0 && a.known == w.head:
				x.step(w, name(fmt.Sprintf("finds the unused key %d", key)), func(w *world) {
					w.actors[i].key, w.actors[i].step = key, stepCommit
					if x.mutation == deletedFirst {
						w.exists &^= bit
					}
				})
			}
		}
	}
}

// upload uploads a new key of an actor, whose PUT may land again.
func (w *world) upload(i int, contents set) {
	a := &w.actors[i]
	a.key, a.gc, a.step = w.usedKeys, w.log[a.known].gc, stepCommit
	w.exists |= 1 << a.key
	w.latePuts |= 1 << a.key
	w.contents[a.key] = contents
	w.usedKeys++
}

// commit sends a record based on the head that the actor knows.
func (x *model) commit(w *world, i int, name func(string) string) {
	a, head := w.actors[i], w.log[w.actors[i].known]
	bit := set(1) << a.key
	next := head
	next.parent = head.writer
	switch kind := w.kinds[i]; kind {
	case kindPush0, kindPush1:
		if head.gc != a.gc && x.mutation != ignoredGC && (x.mutation != checkedKey || w.exists&bit == 0) {
			if w.usedKeys < maxKeys-1 {
				x.step(w, name("uploads again"), func(w *world) { w.uploadAgain(i, x.mutation) })
			}
			return
		}
		next.packs |= bit
		next.tail |= 1 << kind
		next.pushes |= 1 << kind
	case kindCompact:
		if head.gc != a.gc || head.packs&a.old != a.old && x.mutation != uncheckedReplace {
			x.step(w, name("drops its result"), func(w *world) { w.actors[i].step = stepEnd })
			return
		}
		next.packs = head.packs&^a.old | bit
		if x.mutation == uncheckedReplace {
			next.packs = bit
		}
	case kindCheckpoint:
		if head.tail&a.old != a.old {
			x.step(w, name("drops its result"), func(w *world) { w.actors[i].step = stepEnd })
			return
		}
		next.refs, next.tail = head.refs|a.old, head.tail&^a.old
		if x.mutation == foldedTooMuch {
			next.tail = 0
		}
	case kindCollect:
		switch {
		case a.step == stepClear && head.condemned&bit != 0:
			next.condemned &^= bit
		case a.step == stepCommit && head.condemned == 0 && (head.packs&bit == 0 || x.mutation == uncheckedCondemn):
			next.condemned |= bit
			next.gc++
		default:
			x.step(w, name("ends"), func(w *world) { w.actors[i].step = stepEnd })
			return
		}
	}
	x.send(w, i, name, next)
}

// uploadAgain uploads the objects of a push after a collection of garbage.
func (w *world) uploadAgain(i int, m mutation) {
	key := w.actors[i].key
	w.upload(i, 1<<w.kinds[i])
	if m == reusedKey {
		used := w.actors[i].key
		w.exists, w.latePuts, w.usedKeys = w.exists&^(1<<used)|1<<key, w.latePuts&^(1<<used), used
		w.contents[used] = 0
		w.actors[i].key = key
	}
}

// send sends the PUT of a record.
func (x *model) send(w *world, i int, name func(string) string, next modelRecord) {
	slot := slices.IndexFunc(w.attempts[:], func(a modelAttempt) bool { return a.number == 0 })
	number := w.actors[i].known + 1
	if x.mutation == guessedNumber {
		number = w.head + 1
	}
	isRefused := next.packs&next.condemned != 0 && x.mutation != uncheckedCondemn // by Record.Encode
	if slot < 0 || number > maxRecords || w.actors[i].tries == 3 || isRefused {
		return
	}
	x.step(w, name(fmt.Sprintf("sends record %d", number)), func(w *world) {
		a := &w.actors[i]
		next.writer = uint8(i)<<4 | a.tries
		a.tries++
		w.attempts[slot] = modelAttempt{record: next, number: number, actor: uint8(i)}
		a.won, a.lost = stepEnd, a.step
		if w.kinds[i] == kindCollect && a.step == stepCommit {
			a.won = stepDelete
		}
		a.step = stepWait
	})
}

// decide lets a node decide about its attempt by reading.
func (x *model) decide(w *world, i int, name func(string) string) {
	slot := slices.IndexFunc(w.attempts[:], func(a modelAttempt) bool {
		return a.number != 0 && int(a.actor) == i && a.reported == 0
	})
	if slot < 0 { // a mutation has decided
		return
	}
	attempt := w.attempts[slot]
	if attempt.number > w.head {
		if x.mutation == naiveClient {
			x.step(w, name("reports a failure"), func(w *world) {
				w.attempts[slot].reported, w.actors[i].step = reportedLost, stepEnd
			})
		}
		return
	}
	if w.log[attempt.number].writer != attempt.record.writer {
		x.step(w, name("has lost"), func(w *world) {
			a := &w.actors[i]
			w.attempts[slot].reported = reportedLost
			a.known, a.step = attempt.number, a.lost
		})
		return
	}
	x.step(w, name("has won"), func(w *world) {
		a := &w.actors[i]
		w.attempts[slot].reported = reportedWon
		a.known, a.step = attempt.number, a.won
	})
}

// In each state that the model can reach, all invariants hold.
func TestModel(t *testing.T) {
	t.Parallel()
	scenarios := [][]uint8{
		{kindPush0, kindPush1, kindCheckpoint},
		{kindPush0, kindCollect},
		{kindCompact, kindCollect, kindCompact},
		{kindPush0, kindPush1, kindCompact},
		{kindPush0, kindCompact, kindCollect},
		{kindPush0, kindCollect, kindCollect},
		{kindPush0, kindPush1, kindCollect},
	}
	if testing.Short() {
		scenarios = scenarios[:2]
	}
	for _, kinds := range scenarios {
		x := explore(kinds, noMutation)
		t.Logf("actors %v: %d states", kinds, len(x.visited))
		if x.failure != "" {
			t.Errorf("actors %v: %s", kinds, x.failure)
		}
		if len(x.visited) < 500 {
			t.Errorf("actors %v: %d states, want at least 500", kinds, len(x.visited))
		}
	}
}

// Each rule of the design is needed: without it, an invariant does not hold.
func TestModelMutations(t *testing.T) {
	t.Parallel()
	for m, test := range map[mutation]struct {
		kinds []uint8
		want  string
	}{
		naiveClient:      {[]uint8{kindPush0, kindPush1}, "a reported outcome contradicts the log"},
		ignoredCondition: {[]uint8{kindPush0, kindPush1}, "a reported outcome contradicts the log"},
		deletedRecords:   {[]uint8{kindPush0, kindPush1, kindCheckpoint}, "a reported outcome contradicts the log"},
		guessedNumber:    {[]uint8{kindPush0, kindPush1}, "the log is not a chain"},
		ignoredGC:        {[]uint8{kindPush0, kindCollect}, "a key of the head does not exist"},
		checkedKey:       {[]uint8{kindPush0, kindCollect}, "a key of the head does not exist"},
		reusedKey:        {[]uint8{kindPush0, kindCollect}, "a key of the head does not exist"},
		deletedFirst:     {[]uint8{kindPush0, kindCollect}, "a key of the head does not exist"},
		uncheckedCondemn: {[]uint8{kindPush0, kindCollect}, "a key in use is condemned"},
		uncheckedReplace: {[]uint8{kindPush0, kindCompact}, "the packs do not have the objects of a push"},
		foldedTooMuch:    {[]uint8{kindPush0, kindPush1, kindCheckpoint}, "the refs do not have a push"},
	} {
		if x := explore(test.kinds, m); !strings.HasPrefix(x.failure, test.want) {
			t.Errorf("mutation %d: found %q in %d states, want %q", m, x.failure, len(x.visited), test.want)
		}
	}
}
