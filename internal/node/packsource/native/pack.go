package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

const (
	// maxPacks is the maximum number of packs of a repository. They are all open while a pack is made.
	maxPacks = 500
	// level is the zlib level of objects that are encoded again. docs/decisions/0012-packs-in-process.md has the figures.
	level = 6
	// progressInterval is the time between two progress messages.
	progressInterval = 500 * time.Millisecond
)

// nativePack is one pack.
type nativePack struct {
	s    *Source
	ctx  context.Context // of Open
	spec *packsource.Spec
	slot *process.Slot
	git  packsource.Pack // after a fallback
	info packsource.Info

	out    packsource.Output
	begun  bool  // bytes of the pack may have been written
	ended  error // of the Output or of a context
	index  *indexTable
	shown  time.Time
	spoke  time.Time
	count  int
	chosen int
}

// Size returns -1, because the size is unknown until the end.
func (p *nativePack) Size() int64 { return -1 }

func (p *nativePack) Info() packsource.Info {
	if p.git == nil {
		return p.info
	}
	info := p.git.Info()
	info.Wait, info.Made.Fallback = p.info.Wait, p.info.Made.Fallback
	return info
}

// Send makes the pack and writes it to out.
func (p *nativePack) Send(ctx context.Context, out packsource.Output) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.ctx, func() { cancel(p.ctx.Err()) })()
	inProcess := ctx
	if p.s.o.Time > 0 {
		var stop context.CancelFunc
		inProcess, stop = context.WithTimeout(ctx, p.s.o.Time)
		defer stop()
	}
	p.out = out
	start := time.Now()
	err := p.make(inProcess)
	switch {
	case err == nil:
		p.slot.Release() // the index needs none
		p.s.metrics.made(p.info.Made)
		return nil
	case p.ended != nil:
		return p.ended
	case p.begun:
		p.s.failed.Add(p.spec.Repo.Incarnation, time.Now())
		return err
	}
	why := fallbackOf(err)
	if time.Since(start) > slowFallback {
		p.s.failed.Add(kindOf(p.spec), time.Now())
	}
	if inProcess.Err() != nil {
		return fault.Wrap(fault.KindOf(inProcess.Err()), "the pack was abandoned", err)
	}
	p.s.metrics.fallback(why.reason)
	if p.s.o.Always {
		return fault.Wrap(fault.KindOf(err), "the pack cannot be made in process: "+why.reason,
			cmp.Or(why.err, errAlways))
	}
	p.s.log.Debug("git makes a pack", "reason", why.reason, "error", err)
	p.info.Made.Fallback = why.reason
	p.git, err = p.s.o.Git.OpenIn(p.ctx, p.spec, p.slot)
	if err != nil {
		return err
	}
	if err = p.git.Send(ctx, out); err == nil {
		p.s.metrics.made(p.Info().Made)
	}
	return err
}

// fallbackOf returns the reason why a pack was not made.
func fallbackOf(err error) *fallback {
	var why *fallback
	switch {
	case errors.As(err, &why):
		return why
	case fault.Is(err, fault.NotFound):
		return &fallback{reasonMissing, err}
	case fault.Is(err, fault.Corrupt):
		return &fallback{reasonDamaged, err}
	case fault.Is(err, fault.Invalid):
		return &fallback{reasonPacks, err} // the error of Store.Raw
	}
	return &fallback{reasonFailed, err}
}

// make makes the pack in process.
func (p *nativePack) make(ctx context.Context) error {
	if !p.s.o.Always && (p.s.hasFailed(p.spec.Repo.Incarnation) || p.s.hasFailed(kindOf(p.spec))) {
		return &fallback{reason: reasonFailed}
	}
	store, history := p.spec.Repo.Store, p.spec.Repo.Graph
	if store == nil || history == nil {
		var err error
		store, err = pack.Open(p.spec.Repo.Objects, pack.Options{Format: p.spec.Repo.Format})
		if err != nil {
			return err
		}
		defer store.Close()
		history = graph.New(store, store.Dirs, graph.Options{Format: p.spec.Repo.Format})
	}
	packs := p.s.borrow(p.spec)
	if tip := p.s.openTip(p.spec, store.Dirs()[0]); tip != nil {
		packs = append(packs, tip)
	}
	defer func() {
		for _, l := range packs {
			l.close()
		}
	}()
	return use(packs, func(earlier []*source) error {
		return store.Raw(maxPacks, func(packs []*pack.Raw) error {
			return p.compose(ctx, store, history, newView(p.spec.Repo.Format, earlier, packs))
		})
	})
}

// compose selects the objects and writes the pack.
func (p *nativePack) compose(ctx context.Context, store *pack.Store, history *graph.Graph, v *view) error {
	start := time.Now()
	p.shown, p.spoke = start, start
	tick := func(steps int) error { return p.tick(ctx, steps) }
	selection := &selection{ctx: ctx, spec: p.spec, store: store, graph: history, view: v, tick: tick,
		budget: p.s.o.Memory, bitmaps: p.s.bitmaps}
	chosen, known, err := selection.run()
	if err != nil {
		return cmp.Or(p.over(ctx), err)
	}
	p.chosen, p.count = chosen.len(), 0
	made := &p.info.Made
	made.Select = time.Since(start)
	if err := p.say("Enumerating objects: %d, done.\n", p.chosen); err != nil {
		return err
	}
	if need := int64(p.chosen) * entryMemory(p.spec.Repo.Format); need > p.s.o.Memory {
		return &fallback{reason: reasonMemory}
	}
	start = time.Now()
	w := newWriter(p.spec, v, chosen, known)
	w.versions = selection.versions
	if p.spec.Filter == "" { // a client with a filter lacks some of what its commits reach
		w.reached = selection.reached
	}
	w.encoder, w.made, w.tick, w.log = newEncoder(store, v, level, p.s.o.Threads, p.s.o.Memory/2), made, tick, p.s.log
	defer w.encoder.close()
	if !p.s.o.Always {
		if err := w.estimate(selection.byBitmap); err != nil {
			return err
		}
	}
	p.begun = true
	p.info.Objects = uint32(p.chosen)
	w.out = newFramed(outputOf{p}, p.spec.Repo.Format)
	defer w.out.Release()
	err = w.write(p.chosen)
	made.Write = time.Since(start)
	if err != nil {
		return err
	}
	made.Source = packsource.SourceNative
	p.index = &w.index
	p.index.tags = chosenTags(p.spec, v, chosen)
	reused := made.ReusedDisk.Objects + made.ReusedCache.Objects
	return p.say("Total %d (delta %d), reused %d (delta %d), pack-reused %d\n", p.chosen, w.deltas+w.newDeltas, reused,
		w.deltas, made.ReusedCache.Objects)
}

// over returns the error that has ended the pack, if there is one.
func (p *nativePack) over(ctx context.Context) error {
	if p.ended == nil && ctx.Err() != nil {
		cause := context.Cause(ctx)
		p.ended = fault.Wrap(fault.KindOf(cause), "the pack was abandoned", cause)
	}
	return p.ended
}

// tick is called now and then. steps is the number of objects since the last call.
func (p *nativePack) tick(ctx context.Context, steps int) error {
	if err := p.over(ctx); err != nil {
		return err
	}
	p.count += steps
	now := time.Now()
	if now.Sub(p.shown) >= progressInterval {
		p.shown = now
		if p.begun {
			return p.say("Writing objects: %d%% (%d/%d)\r", p.count*100/max(p.chosen, 1), p.count, p.chosen)
		}
		if err := p.say("Enumerating objects: %d\r", p.count); err != nil {
			return err
		}
	}
	if after := p.out.KeepAliveAfter(); after > 0 && now.Sub(p.spoke) >= after {
		p.spoke = now
		p.ended = p.out.KeepAlive()
	}
	return p.ended
}

// say sends a line of progress.
func (p *nativePack) say(format string, values ...any) error {
	p.ended = p.out.Progress(fmt.Appendf(nil, format, values...))
	return p.ended
}

// outputOf is the Output of a pack. It remembers its error.
type outputOf struct{ p *nativePack }

func (o outputOf) Write(b []byte) (int, error) {
	n, err := o.p.out.Write(b)
	o.p.info.Bytes += int64(n)
	o.p.ended, o.p.spoke = err, time.Now()
	return n, err
}

// WriteIndex writes the index of the pack. A pack that git made has none, and one that no other is composed from needs
// none.
func (p *nativePack) WriteIndex(w io.Writer) error {
	if p.index == nil || !composes(p.spec) {
		return nil
	}
	return writeIndex(w, p.spec, p.index)
}

// Close releases the slot.
func (p *nativePack) Close() error {
	p.slot.Release()
	p.index = nil
	if p.git != nil {
		return p.git.Close()
	}
	return nil
}
