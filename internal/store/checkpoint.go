package store

import (
	"bufio"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

const (
	// A tail of maxTailEntries or of about maxTailBytes in JSON is folded into a new checkpoint.
	maxTailEntries = 64
	maxTailBytes   = 32 << 10
	// maxPushedTail is the same for pushes, which make a checkpoint themselves if the record would be too large.
	maxPushedTail = 128 << 10
)

// isTailLong reports whether it is time for a new checkpoint.
func isTailLong(r *replog.Refs) bool {
	return len(r.Tail) >= maxTailEntries || r.TailBytes() >= maxTailBytes
}

// checkpoint is a checkpoint that was uploaded, and that no record names yet.
type checkpoint struct {
	repository *repository
	refs       replog.Refs // the checkpoint, without a tail
	of         replog.Refs // what it replaces: a checkpoint and a tail
	gc         uint64      // Record.GC before the upload; see CollectGarbage
	dir        string      // has its file
}

// file is the path of the checkpoint on this node, until close.
func (c *checkpoint) file() string { return filepath.Join(c.dir, "refs") }

// close removes the file. c may be nil.
func (c *checkpoint) close() {
	if c != nil {
		_ = os.RemoveAll(c.dir)
	}
}

// publishTail publishes a checkpoint of all refs if the tail of the latest known state is long. It runs after pushes,
// and not in their path: a checkpoint commutes with pushes.
func (r *repository) publishTail() {
	head := r.known()
	if head == nil || head.layers == nil || !isTailLong(&head.record.Refs) {
		return
	}
	if !r.folding.CompareAndSwap(false, true) {
		return
	}
	r.store.running.Go(func() {
		defer r.folding.Store(false)
		if err := r.publishCheckpoint(r.store.ctx, head); err != nil {
			r.store.log.Warn("cannot publish a checkpoint of refs", "repository_id", r.id, "error", err)
		}
	})
}

// publishCheckpoint makes a checkpoint of the refs of a state and publishes it. The repository may be deleted
// meanwhile.
func (r *repository) publishCheckpoint(ctx context.Context, head *state) error {
	c, err := r.writeCheckpoint(ctx, head, nil)
	if err != nil {
		return err
	}
	defer c.close()
	return r.publishUploaded(ctx, c)
}

// publishUploaded appends a record that names a checkpoint. It drops the checkpoint if another node
// published one.
func (r *repository) publishUploaded(ctx context.Context, c *checkpoint) error {
	_, err := r.changeThen(ctx, func(head *state) (*replog.Record, error) {
		if !c.isCurrent(head.record) {
			return nil, errNoChange
		}
		next := head.record.Next(replog.KindCheckpoint, r.store.options.Node, time.Now())
		next.Refs = c.refs
		next.Refs.Tail = slices.Clone(head.record.Refs.Tail[len(c.of.Tail):])
		return next, nil
	}, c.install)
	return err
}

// isCurrent reports whether the head has the refs from which the checkpoint was made, and perhaps later changes.
// Without a collection of garbage since, the checkpoint is not condemned.
func (c *checkpoint) isCurrent(head *replog.Record) bool {
	n := len(c.of.Tail)
	return head.GC == c.gc && head.Refs.Checkpoint == c.of.Checkpoint && len(head.Refs.Tail) >= n &&
		(n == 0 || head.Refs.Tail[n-1].Number == c.of.Tail[n-1].Number)
}

// install moves the file of the checkpoint into the local copy, before the record that names it is adopted.
func (c *checkpoint) install(record *replog.Record) {
	if err := c.repository.local.InstallBase(record, c.file()); err != nil {
		c.repository.store.log.Warn("cannot keep a checkpoint on this node, it is downloaded again", "repository_id",
			c.repository.id, "error", err)
	}
}

// writeCheckpoint uploads a checkpoint of the refs of a state with more changes. A record with this checkpoint must
// follow a record for which checkpoint.isCurrent reports true. The caller closes the checkpoint.
func (r *repository) writeCheckpoint(ctx context.Context, head *state, more []replog.RefChange) (*checkpoint, error) {
	dir, err := r.local.TempDir()
	if err != nil {
		return nil, err
	}
	c := &checkpoint{repository: r, of: head.record.Refs, gc: head.record.GC, dir: dir}
	tail, number := slices.Clone(c.of.Tail), head.record.Number
	if len(more) > 0 {
		number++
		tail = append(tail, replog.TailEntry{Number: number, Changes: more})
	}
	if err := c.write(head.layers.Base, fold(tail)); err != nil {
		c.close()
		return nil, fault.Wrap(fault.Unavailable, "cannot write a checkpoint of refs", err)
	}
	c.refs.Checkpoint = replog.CheckpointKey(number, replog.NewID())
	f, err := r.uploader().file(ctx, c.refs.Checkpoint, c.file())
	if err != nil {
		c.close()
		return nil, err
	}
	c.refs.Bytes, c.refs.SHA256 = f.Bytes, f.SHA256
	return c, nil
}

// write writes the file.
func (c *checkpoint) write(base *refs.Base, changes []refs.Ref) error {
	f, err := os.Create(c.file())
	if err != nil {
		return err
	}
	defer f.Close()
	b := bufio.NewWriterSize(f, 1<<20)
	more, err := refs.WritePacked(b, base, changes)
	if err != nil {
		return err
	}
	c.refs.Count = c.of.Count + more
	return errors.Join(b.Flush(), f.Close())
}
