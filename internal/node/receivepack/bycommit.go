package receivepack

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/refs"
)

// keepAlive is how often the client hears from a push that waits for its commit.
const keepAlive = 5 * time.Second

// byCommit is the destination of a push in a shadow. Git changes the refs of the shadow, and Shadow.Commit those of the
// repository. Nothing is journaled or synced, because the shadow of a push that does not end is worthless.
type byCommit struct {
	*pushSession
	trace   io.Closer     // the write end of Git's trace
	watched chan struct{} // closed when the trace has ended
}

// begin also keeps Git from listing the refs of the repository whose objects the shadow borrows: the shadow has them. A
// push that cuts the history is refused, because Git would note this in the shadow alone.
func (p *byCommit) begin(context.Context, *refs.Snapshot) (setup gitSetup, err error) {
	setup.config = [][2]string{
		{"core.fsync", "none"}, {"core.alternateRefsCommand", "true"}, {"receive.shallowUpdate", "false"},
	}
	events, trace, err := os.Pipe()
	if err != nil {
		return setup, fault.Wrap(fault.Unavailable, "cannot create a pipe", err)
	}
	setup.trace, p.trace, p.watched = trace, trace, make(chan struct{})
	go func() {
		defer close(p.watched)
		defer events.Close()
		p.watch(events)
	}()
	return setup, nil
}

// watch reads the events of Git to their end. When git index-pack has exited, the index of the pack is complete. After
// that Git checks that the history is complete and runs hooks.
func (p *byCommit) watch(events io.Reader) {
	objects := filepath.Join(p.target.Common, "objects")
	for lines := bufio.NewScanner(events); lines.Scan(); {
		if !bytes.Contains(lines.Bytes(), []byte(`"event":"child_exit"`)) {
			continue
		}
		indexes, _ := fs.Glob(os.DirFS(objects), "*incoming-*/pack/pack-*.idx") // the pattern is valid
		if len(indexes) > 0 {
			p.target.Shadow.Quarantined(filepath.Join(objects, filepath.Dir(filepath.Dir(indexes[0]))))
			break
		}
	}
	_, _ = io.Copy(io.Discard, events) // Git must be able to write
}

func (p *byCommit) agreed() error { return nil }

func (p *byCommit) ended(context.Context, int, bool) {
	p.trace.Close()
	<-p.watched
}

func (p *byCommit) apply(ctx context.Context, gitErr error) (updates []Update, isKnown bool, err error) {
	if gitErr != nil || !p.report.complete {
		p.report.changed = nil
		return nil, true, nil
	}
	updates = p.reportedUpdates()
	isNoop := make([]bool, len(updates))
	proposal := Proposal{Push: p.push, Atomic: p.isAtomic()}
	for i, u := range updates {
		if isNoop[i], err = p.isNoopDeletion(u); err != nil {
			p.report.changed = nil
			return nil, true, err
		}
		if !isNoop[i] {
			proposal.Updates = append(proposal.Updates, u)
		}
	}
	if len(proposal.Updates) == 0 {
		return nil, true, nil
	}
	if err = p.checkShadowLFS(ctx, updates, isNoop); err != nil {
		return nil, true, err
	}
	if p.hooks.missingLFS {
		return nil, true, nil
	}
	proposal.Updates = p.Classify(ctx, p.target, p.visible, proposal.Updates)
	var result CommitResult
	if result.Err = p.packLooseObjects(ctx); result.Err == nil {
		result = p.commit(ctx, proposal)
	}
	err = result.Err
	p.outcome.Stored, p.push.Record = result.Stored, result.Stored.Record
	if err != nil {
		p.report.changed = nil
		if errors.Is(err, ErrUnknown) {
			return nil, false, fault.Wrap(fault.Deadline, "the result of this push is unknown, because the storage did not "+
				"answer: fetch, and check whether the refs have changed", err)
		}
		return nil, true, err
	}
	p.correctReport(isNoop, result.Refused)
	return made(proposal.Updates, result.Refused), true, nil
}

// checkShadowLFS checks the push for missing LFS objects, if no script has had it checked, and corrects the report. An
// error means that it could not be checked.
func (p *byCommit) checkShadowLFS(ctx context.Context, updates []Update, isNoop []bool) error {
	err := p.checkLFS(ctx, filepath.Join(p.target.Common, "objects"), func(text string) {
		_ = p.out.say(text) // finish notices a broken connection
	})
	if !p.hooks.missingLFS {
		if err != nil {
			p.report.changed = nil
		}
		return err
	}
	p.hooks.rejection = err
	p.correctReport(isNoop, slices.Repeat([]*Refusal{refusedLFS}, len(updates)))
	return nil
}

// isNoopDeletion reports whether an update deletes a ref that did not exist. Git reports it as done.
func (p *byCommit) isNoopDeletion(u Update) (bool, error) {
	if !u.New.IsZero() {
		return false, nil
	}
	_, existed, err := p.before.Lookup(u.Ref)
	return !existed, err
}

// packLooseObjects makes a pack of the objects that hooks have written into the shadow, because only packs are
// committed.
func (p *byCommit) packLooseObjects(ctx context.Context) error {
	objects := filepath.Join(p.target.Common, "objects")
	paths, err := fs.Glob(os.DirFS(objects), "[0-9a-f][0-9a-f]/*")
	if err != nil || len(paths) == 0 {
		return err
	}
	var ids strings.Builder
	for _, path := range paths {
		if id, err := git.ParseObjectID(strings.Replace(path, "/", "", 1)); err == nil {
			ids.WriteString(id.String() + "\n")
		}
	}
	child, err := p.options.Runner.Start(ctx, process.Command{
		Class: ClassHook, Subcommand: "pack-objects", Caller: p.caller, Repository: p.target.Common,
		Args: []string{"-c", "safe.directory=*", "--git-dir=" + p.target.Dir, "pack-objects", "-q",
			filepath.Join(objects, "pack", "pack")},
		Stdin: strings.NewReader(ids.String()),
	})
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, child.Stdout())
	if _, err = child.Wait(); err != nil {
		return fault.Wrap(fault.Unavailable, "push not accepted: the objects that hooks wrote cannot be packed", err)
	}
	return nil
}

// commit calls Shadow.Commit, and sends the client a sign of life meanwhile.
func (p *byCommit) commit(ctx context.Context, proposal Proposal) (result CommitResult) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		result = p.target.Shadow.Commit(ctx, []Proposal{proposal})[0]
	}()
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return result
		case <-tick.C:
			if p.out.sideband {
				_ = p.out.pass([]byte{byte(pktline.BandData)}) // finish notices a broken connection
			}
		}
	}
}

// correctReport changes Git's report about the updates that were not made.
func (p *byCommit) correctReport(isNoop []bool, refused []*Refusal) {
	p.refusals = make(map[string]*Refusal)
	reasons := make(map[string][]string) // by the name in the report, one for each of its lines
	i, next := 0, 0
	for _, u := range p.push.Updates {
		for range p.report.changed[string(u.Ref)] {
			reason := ""
			if !isNoop[i] {
				if r := refused[next]; r != nil {
					reason, p.refusals[string(u.Ref)] = r.text, r
				}
				next++
			}
			reasons[string(u.Ref)] = append(reasons[string(u.Ref)], reason)
			i++
		}
	}
	if len(p.refusals) > 0 {
		p.out.kept = refuseInReport(p.out.kept, reasons)
		p.report = readReport(p.out.kept)
	}
}

// made returns the updates without a reason against them.
func made(updates []Update, refused []*Refusal) []Update {
	list := make([]Update, 0, len(updates))
	for i, u := range updates {
		if refused[i] == nil {
			list = append(list, u)
		}
	}
	return list
}
