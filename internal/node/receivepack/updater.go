package receivepack

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/pushrecovery"
)

// ClassUpdate is the class of the git update-ref processes that stay for repositories with many changes by calls.
const ClassUpdate process.Class = "update"

// NeedsGit reports whether git receive-pack is needed for changes of a repository: it has hooks or special settings,
// webhooks decide, or it borrows objects. Otherwise an Updater can make them.
func (s *Server) NeedsGit(t Target) (bool, error) {
	programs, err := s.programs(t.Repo)
	if err != nil {
		return false, err
	}
	return len(programs) > 0 || s.decides(t) || s.options.Runner.Slots(ClassUpdate) == 0 || t.Dir != t.Common ||
		!t.IsBare() || hasSpecialConfig(t.Repo) || exists(filepath.Join(t.Common, "logs")) ||
		exists(filepath.Join(t.Common, "shallow")), nil
}

// decides reports whether the server itself decides about each push to a repository.
func (s *Server) decides(t Target) bool {
	return s.options.Decider != nil || t.borrows() || t.Policy().Purging
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// plainKeys are the keys of a repository's configuration that the rules of an Updater do not depend on, although others
// of their sections could change them.
var plainKeys = []string{"receive.advertiseatomic", "receive.advertisepushoptions", "receive.maxinputsize",
	"receive.unpacklimit", "receive.autogc", "receive.hiderefs", "transfer.unpacklimit", "transfer.hiderefs",
	"transfer.advertisesid", "extensions.objectformat", "extensions.refstorage", "extensions.noop"}

// hasSpecialConfig reports whether the configuration can change the rules of pushes, or how Git writes files.
func hasSpecialConfig(r *repo.Repo) bool {
	for key := range r.Config().All() {
		section, _, _ := strings.Cut(key, ".")
		switch {
		case slices.Contains(plainKeys, key):
		case section == "receive", section == "transfer", section == "extensions", section == "reftable", section == "hook",
			key == "core.logallrefupdates", key == "core.sharedrepository", strings.HasPrefix(key, "core.fsync"):
			return true
		}
	}
	return false
}

// FitsPush reports whether a pack is within the limits of a push.
func (s *Server) FitsPush(policy *repo.PushPolicy, bytes int64) bool {
	limit := (&pushSession{Server: s, policy: policy}).maxPackSize()
	return limit == 0 || bytes <= limit
}

// ChecksLFS reports whether pushes to a target are checked for missing LFS objects.
func (s *Server) ChecksLFS(t Target) bool {
	return t.LFS != nil && s.options.MissingLFS != AllowMissingLFS
}

// Updater makes changes of a repository on this disk with one git update-ref process. The repository must not need more
// of Git (Server.NeedsGit). It is not safe for concurrent use.
type Updater struct {
	server    *Server
	directory os.FileInfo
	child     *process.Process
	in        *commandQueue
	out       *bufio.Reader
	journaled *pushrecovery.Push
	cancel    context.CancelFunc
}

// Update makes changes together, and returns an error for each. Later changes may build on earlier ones. No ref has
// changed if the error is ErrNotUpdated: one had another value, or was locked.
//
// On a disk it is one transaction of an Updater, which it starts unless there is one. The packs with all objects must
// be synced; Update syncs their directory. In a store the packs are in the shadow.
func (s *Server) Update(ctx context.Context, u *Updater, t Target, changes []Change) (*Updater, []error) {
	start := time.Now()
	pushes := make([]*Push, len(changes))
	of := t
	if t.Shadow != nil {
		of.Repo = t.Shadow.Repo()
	}
	before, err := of.Refs.SnapshotOf(ctx, nil)
	if err != nil {
		return u, slices.Repeat([]error{err}, len(changes))
	}
	for i := range changes {
		c := &changes[i]
		c.Updates = s.Classify(ctx, of, before, c.Updates)
		pushes[i] = &Push{ID: rand.Text(), Repo: t.Path, Incarnation: t.Incarnation, Pusher: c.Pusher, Options: c.Options,
			Updates: c.Updates}
	}
	if r := s.options.Recorder; r != nil {
		if err := r.Begin(pushes...); err != nil {
			err = fault.Wrap(fault.Unavailable, "the event of the change cannot be recorded", err)
			return u, slices.Repeat([]error{err}, len(changes))
		}
	}
	var errs []error
	if t.Shadow != nil {
		errs = propose(ctx, t, pushes)
	} else {
		var err error
		u, err = s.transact(ctx, u, t, merged(changes))
		errs = slices.Repeat([]error{err}, len(changes))
	}
	var made []Update
	for i, c := range changes {
		if errs[i] == nil {
			made = append(made, c.Updates...)
			s.metrics.observe(nil, "", time.Since(start))
			s.logChange(t, c)
		}
	}
	if s.options.Recorder != nil {
		s.endAll(pushes, errs)
	}
	if t.Changed != nil && len(made) > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalizeTimeout)
		defer cancel()
		t.Changed(ctx, made)
	}
	return u, errs
}

// propose makes changes in a store.
func propose(ctx context.Context, t Target, pushes []*Push) []error {
	proposals, errs := make([]Proposal, len(pushes)), make([]error, len(pushes))
	for i, p := range pushes {
		proposals[i] = Proposal{Push: p, Updates: p.Updates, Atomic: true}
	}
	for i, result := range t.Shadow.Commit(ctx, proposals) {
		pushes[i].Record = result.Stored.Record
		errs[i] = result.Err
		for at, r := range result.Refused {
			switch {
			case r == nil || errs[i] != nil:
			case r == RefusedQuota:
				errs[i] = fault.New(fault.Full, "%s: %s", pushes[i].Updates[at].Ref, r)
			default:
				errs[i] = fmt.Errorf("%w: %s: %s", ErrNotUpdated, pushes[i].Updates[at].Ref, r)
			}
		}
		if errors.Is(result.Err, ErrUnknown) {
			errs[i] = errUnknown(result.Err)
		}
	}
	return errs
}

// errUnknown is the error of a change that may have been made.
func errUnknown(cause error) error {
	return fault.Wrap(fault.Deadline, "the result is unknown: check the refs before you repeat the call",
		errors.Join(ErrUnknown, cause))
}

// endAll records the results of changes.
func (s *Server) endAll(pushes []*Push, errs []error) {
	results := make([]Result, len(pushes))
	for i, p := range pushes {
		results[i] = Result{Push: p, IsUnknown: errors.Is(errs[i], ErrUnknown)}
		if errs[i] == nil {
			results[i].Made = p.Updates
		}
	}
	err := unrecorded(s.options.Recorder.End(results...))
	for i := range errs {
		errs[i] = cmp.Or(errs[i], err)
	}
}

// logChange logs the updates of a change, as a gateway does for pushes.
func (s *Server) logChange(t Target, c Change) {
	updates := make([]node.RefUpdate, len(c.Updates))
	for i, u := range c.Updates {
		updates[i] = node.RefUpdate{Ref: string(u.Ref), Old: u.Old, New: u.New, Result: node.UpdateOK}
	}
	s.log.Info("changed refs", "repository", t.Path.String(), "user", c.Pusher.Name, "updates", updates)
}

// merged returns the updates of several changes as one for each ref.
func merged(changes []Change) []Update {
	var list []Update
	at := make(map[git.RefName]int)
	for _, c := range changes {
		for _, u := range c.Updates {
			if i, ok := at[u.Ref]; ok {
				list[i].New = u.New
				continue
			}
			at[u.Ref] = len(list)
			list = append(list, u)
		}
	}
	return list
}

// ErrNotUpdated is in the chain of an error of Update if no ref has changed.
var ErrNotUpdated = errors.New("git has not changed the refs")

// transact makes updates of different refs in one transaction.
func (s *Server) transact(ctx context.Context, u *Updater, t Target, updates []Update) (*Updater, error) {
	record := recordOf(t, updates)
	notMade := func(err error) error {
		u.Close()
		return fmt.Errorf("%w: %w", ErrNotUpdated, err)
	}
	info, err := os.Stat(t.Common)
	if err != nil {
		return nil, notMade(errRepositoryGone(err))
	}
	if u != nil && os.SameFile(info, u.directory) && u.isRunning() {
		u.journaled, err = s.recovery.Rewrite(ctx, u.journaled, record)
	} else {
		u.Close()
		u, err = s.newUpdater(ctx, t, info, record)
	}
	if err != nil {
		return nil, notMade(err)
	}
	synced := make(chan error, 1)
	go func() { synced <- s.sync(filepath.Join(t.Common, "objects/pack")) }()
	names, files := make([]git.RefName, len(updates)), make(map[git.RefName]bool)
	for i, update := range updates {
		names[i] = update.Ref
		if exists(filepath.Join(t.Common, string(update.Ref))) {
			files[update.Ref] = true
		}
	}
	err = u.prepare(t, updates)
	if err = errors.Join(err, <-synced); err == nil && u.journaled.IsAtomic() {
		err = u.journaled.MarkAgreed()
	}
	if err != nil {
		return nil, notMade(err)
	}
	u.in.queue <- []byte("commit\x00")
	if err := u.expect("commit"); err != nil {
		u.Close() // waits until the journal has completed or undone the transaction
		u = nil
		if err = s.afterKill(ctx, t, updates, err); err != nil {
			return nil, err
		}
	} else if u.journaled.IsAtomic() && u.journaled.MarkSettled() != nil {
		u.Close() // removes it from the journal
		u = nil
	}
	if after, err := os.Stat(t.Common); err != nil || !os.SameFile(after, info) {
		u.Close()
		return nil, errUnknown(errRepositoryGone(err))
	}
	if err := s.persist(context.WithoutCancel(ctx), t, false, names, files); err != nil {
		return u, errUnknown(err)
	}
	return u, nil
}

// recordOf returns the record of a transaction for the journal.
func recordOf(t Target, updates []Update) pushrecovery.Record {
	record := pushrecovery.Record{GitDir: t.Dir, CommonDir: t.Common, Start: time.Now(),
		Refs: make(map[git.RefName]git.ObjectID), Committer: newIdentity(node.Pusher{}, "http").environment()}
	if len(updates) > 1 {
		record.Old = make(map[git.RefName]git.ObjectID)
	}
	for _, update := range updates {
		record.Refs[update.Ref] = update.New
		record.LocksHead = record.LocksHead || update.Ref == t.Head
		if record.Old != nil {
			record.Old[update.Ref] = update.Old
		}
	}
	return record
}

// afterKill finds out the result of a transaction whose Git has ended early. It returns nil if all updates were made.
func (s *Server) afterKill(ctx context.Context, t Target, updates []Update, cause error) error {
	snap, err := t.Refs.Snapshot(context.WithoutCancel(ctx))
	made, unmade := 0, 0
	for _, u := range updates {
		var current git.ObjectID
		if err == nil {
			current, err = value(snap.Unhidden(), u.Ref)
		}
		switch current {
		case u.New:
			made++
		case u.Old:
			unmade++
		}
	}
	switch {
	case err == nil && made == len(updates):
		return nil
	case err == nil && unmade == len(updates):
		return fmt.Errorf("%w: %w", ErrNotUpdated, cause)
	}
	return errUnknown(errors.Join(cause, err))
}

// maxQueued is the maximum number of pieces of input that are sent before Git answers.
const maxQueued = 4

// commandQueue is the input of Git. Sending does not wait, also if Git has ended.
type commandQueue struct {
	queue chan []byte
	rest  []byte
}

func (q *commandQueue) Read(b []byte) (int, error) {
	if len(q.rest) == 0 {
		var ok bool
		if q.rest, ok = <-q.queue; !ok {
			return 0, io.EOF
		}
	}
	n := copy(b, q.rest)
	q.rest = q.rest[n:]
	return n, nil
}

// newUpdater starts the process.
func (s *Server) newUpdater(ctx context.Context, t Target, directory os.FileInfo, record pushrecovery.Record) (
	*Updater, error) {
	journaled, err := s.recovery.Begin(ctx, record, rand.Text())
	if err != nil {
		return nil, err
	}
	u := &Updater{server: s, directory: directory, journaled: journaled}
	u.in = &commandQueue{queue: make(chan []byte, maxQueued)}
	var life context.Context
	life, u.cancel = context.WithCancel(context.WithoutCancel(ctx))
	u.child, err = s.options.Runner.Start(life, process.Command{
		Class: ClassUpdate, Subcommand: "update-ref", Dir: t.Common, Stdin: u.in, Env: record.Committer,
		Files: journaled.Files(), Grace: gracePeriod, Repository: t.Common, Args: []string{
			"-c", "safe.directory=*", "-c", "core.hooksPath=" + os.DevNull, "-c", "core.fsync=reference",
			"-c", "core.fsyncMethod=fsync", "--git-dir=.", "update-ref", "--stdin", "-z",
		}})
	if err != nil {
		u.cancel()
		s.recovery.End(ctx, journaled, true)
		return nil, err
	}
	u.out = bufio.NewReader(u.child.Stdout())
	if s.started != nil {
		s.started(u.child.Pid())
	}
	return u, nil
}

func (u *Updater) isRunning() bool {
	select {
	case <-u.child.Done():
		return false
	default:
		return true
	}
}

// prepare has Git lock the refs and compare their values.
func (u *Updater) prepare(t Target, updates []Update) error {
	b := []byte("start\x00")
	for _, update := range updates {
		b = fmt.Appendf(b, "update %s\x00%s\x00%s\x00", update.Ref, update.New, hexID(t, update.Old))
	}
	u.in.queue <- append(b, "prepare\x00"...)
	if err := u.expect("start"); err != nil {
		return err
	}
	return u.expect("prepare")
}

// expect waits until Git has executed a command of the transaction.
func (u *Updater) expect(name string) error {
	line, err := u.out.ReadString('\n')
	if err != nil || line != name+": ok\n" {
		return fmt.Errorf("git update-ref: %s: got %.100q: %w", name, line, errors.Join(err, io.ErrUnexpectedEOF))
	}
	return nil
}

// Close ends the process. It may be called for nil.
func (u *Updater) Close() {
	if u == nil {
		return
	}
	close(u.in.queue)
	_, _ = io.Copy(io.Discard, u.out)
	usage, _ := u.child.Wait()
	u.cancel()
	u.server.recovery.End(context.Background(), u.journaled, !strings.HasPrefix(usage.Exit, "signal"))
}
