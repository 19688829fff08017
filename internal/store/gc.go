package store

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// GCOptions configure CollectGarbage.
type GCOptions struct {
	OlderThan time.Duration // time since a file was uploaded, and since the last record that named it. Zero: 7 days.
	DryRun    bool          // delete nothing
	Node      string        // name of the writer in records
	Progress  Progress      // nil: none
}

// GCReport is the result of CollectGarbage.
type GCReport struct {
	Repositories int      `json:"repositories"` // that were examined
	Objects      int      `json:"objects"`      // that were deleted, or would be with GCOptions.DryRun
	Bytes        int64    `json:"bytes"`        // of these objects
	Keys         []string `json:"keys"`         // of these objects
}

const (
	gcAge = 7 * 24 * time.Hour
	// maxCondemned is the maximum number of keys that one record condemns.
	maxCondemned = 200
	reposPrefix  = "repos/"
)

// CollectGarbage deletes files that no repository needs any more: packs that were replaced, old checkpoints, uploads of
// pushes that failed, and the files of deleted repositories.
//
// The order of the log makes this safe, not the age of files. A record condemns keys that the head does not name. Then
// they are deleted, and another record takes them off the list. A push that began its upload before a record condemned
// keys uploads its files again, under other keys. So no record ever names a deleted key. The age only avoids waste:
// nodes that read an older head, and uploads that still run, find their files.
//
// Forks name packs of other repositories, and these list the IDs of all forks that may do so. Before a record condemns
// keys, the heads of all listed forks are read. The packs that a fork borrows only ever become fewer. If another node
// lists a new fork meanwhile, the record loses its number, and the new fork is read, too.
//
// An error of the store ends it. A damaged repository is skipped, and its error is returned in the end. The next call
// deletes the keys that are condemned by then.
func CollectGarbage(ctx context.Context, b bucket.Bucket, o GCOptions) (*GCReport, error) {
	c := newCollector(b, o)
	if err := cmp.Or(c.walk(ctx, reposPrefix, 0), c.removeMarks(ctx)); err != nil {
		return nil, err
	}
	return &c.report, nil
}

// collector collects the garbage of repositories, one after the other.
type collector struct {
	bucket  bucket.Bucket
	options GCOptions
	report  GCReport
	uses    map[string]forkUse // of the repository that is being collected, by fork
}

func newCollector(b bucket.Bucket, o GCOptions) *collector {
	o.OlderThan = cmp.Or(o.OlderThan, gcAge)
	return &collector{bucket: b, options: o}
}

// walk collects the garbage of all repositories whose keys have a prefix, with a pause after each. It returns the first
// error.
func (c *collector) walk(ctx context.Context, prefix string, pause time.Duration) (failed error) {
	for after := ""; ; {
		list, err := c.bucket.List(ctx, prefix, after, 1)
		if err != nil {
			return err
		}
		if len(list) == 0 {
			return failed
		}
		id, _, _ := strings.Cut(strings.TrimPrefix(list[0].Key, reposPrefix), "/")
		after = reposPrefix + id + "/~"
		c.report.Repositories++
		c.options.Progress.report(int64(c.report.Repositories), 0, id)
		if err := c.collect(ctx, id); err != nil {
			failed = cmp.Or(failed, fmt.Errorf("repository %s: %w", id, err))
			if ctx.Err() != nil || fault.Is(err, fault.Unavailable) {
				return failed
			}
		}
		if err := retry.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// collect collects the garbage of one repository.
func (c *collector) collect(ctx context.Context, id string) error {
	c.uses = nil
	files, err := c.files(ctx, id)
	if err != nil {
		return err
	}
	log := replog.Open(c.bucket, id)
	head, err := log.Head(ctx)
	if fault.Is(err, fault.NotFound) {
		head, err = c.begin(ctx, log, files)
	}
	if head == nil || err != nil {
		return err
	}
	if err := c.collectLFS(ctx, log, id, head); err != nil {
		return err
	}
	if len(head.Condemned) > 0 && !c.options.DryRun { // by a collection that did not end
		c.count(id, files, head.Condemned)
		if head, err = c.remove(ctx, log, id, head); err != nil {
			return err
		}
	}
	keys, err := c.garbage(ctx, log, id, head, files)
	if err != nil {
		return err
	}
	c.count(id, files, keys)
	if c.options.DryRun {
		return nil
	}
	for batch := range slices.Chunk(keys, maxCondemned) {
		if head, err = c.condemn(ctx, log, id, head, batch); err != nil {
			return err
		}
		if head, err = c.remove(ctx, log, id, head); err != nil {
			return err
		}
	}
	return nil
}

// collectLFS deletes the LFS objects and locks of a repository that was deleted some time ago. Uploads to it are
// refused, and those that were running then have ended.
func (c *collector) collectLFS(ctx context.Context, log *replog.Log, id string, head *replog.Record) error {
	if !head.Deleted {
		return nil
	}
	limit := time.Now().Add(-c.options.OlderThan)
	var old []bucket.Info
	for _, dir := range []string{lfsPrefix, lockPrefix} {
		err := bucket.Each(ctx, c.bucket, reposPrefix+id+"/"+dir, func(info bucket.Info) error {
			if !info.Modified.After(limit) {
				old = append(old, info)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if len(old) == 0 {
		return nil
	}
	if head.Number > 1 { // otherwise there never was a repository; see begin
		if before, err := headAt(ctx, log, head, c.bucket, limit); err != nil || before == nil || !before.Deleted {
			return err
		}
	}
	for batch := range slices.Chunk(old, maxCondemned) {
		var keys []string
		for _, info := range batch {
			keys = append(keys, info.Key)
			c.report.Objects++
			c.report.Bytes += info.Size
		}
		c.report.Keys = append(c.report.Keys, keys...)
		if c.options.DryRun {
			continue
		}
		if err := c.bucket.Delete(ctx, keys...); err != nil {
			return err
		}
	}
	return nil
}

// begin begins the log of a repository that has only files: an import uploaded them and did not end. If they are old,
// record 1 makes the repository a deleted one. If the import still runs, it loses record 1 and fails.
func (c *collector) begin(ctx context.Context, log *replog.Log, files map[string]file) (*replog.Record, error) {
	for _, f := range files {
		if f.modified.After(time.Now().Add(-c.options.OlderThan)) {
			return nil, nil
		}
	}
	return c.bury(ctx, log, len(files) == 0)
}

// bury makes record 1 of a log a deleted repository. With isDry, it only returns the record. If another record has the
// number, it returns nil.
func (c *collector) bury(ctx context.Context, log *replog.Log, isDry bool) (*replog.Record, error) {
	first := &replog.Record{Number: 1, Txn: replog.NewID(), Kind: replog.KindDelete, At: time.Now(), Node: c.options.Node,
		Head: "refs/heads/main", ObjectFormat: git.SHA1, Deleted: true}
	if c.options.DryRun || isDry {
		return first, nil
	}
	attempt, err := log.Append(ctx, first)
	if err != nil || attempt.Outcome() != replog.Won { // if another one wins, the next collection sees it
		return nil, err
	}
	return first, nil
}

// file is what the bucket has of one key in records: a pack with its index and extra files, or a checkpoint.
type file struct {
	names    []string // keys of the objects, relative to the repository
	bytes    int64
	modified time.Time // of the newest object
}

// files lists the files of a repository by their keys in records.
func (c *collector) files(ctx context.Context, id string) (map[string]file, error) {
	files := map[string]file{}
	root := reposPrefix + id + "/"
	for _, dir := range []string{"packs/", "refs/"} {
		err := bucket.Each(ctx, c.bucket, root+dir, func(info bucket.Info) error {
			name := strings.TrimPrefix(info.Key, root)
			key, ok := replog.ParseFileKey(name)
			if !ok {
				return nil
			}
			f := files[key]
			f.names, f.bytes = append(f.names, name), f.bytes+info.Size
			if info.Modified.After(f.modified) {
				f.modified = info.Modified
			}
			files[key] = f
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

// garbage returns the keys that can be condemned, sorted.
func (c *collector) garbage(ctx context.Context, log *replog.Log, id string, head *replog.Record,
	files map[string]file) ([]string, error) {
	limit := time.Now().Add(-c.options.OlderThan)
	for key, f := range files {
		if head.HasKey(key) || f.modified.After(limit) || slices.Contains(head.Condemned, key) {
			delete(files, key)
		}
	}
	if len(files) == 0 {
		return nil, nil
	}
	if head.Number == 1 && head.Deleted { // see begin
		return slices.Sorted(maps.Keys(files)), nil
	}
	before, err := headAt(ctx, log, head, c.bucket, limit)
	if err != nil {
		return nil, err
	}
	if before != nil {
		maps.DeleteFunc(files, func(key string, _ file) bool { return before.HasKey(key) })
		if err := c.buryPending(ctx, before, head); err != nil {
			return nil, err
		}
	}
	if err := c.examine(ctx, id, head.Forks); err != nil {
		return nil, err
	}
	maps.DeleteFunc(files, func(key string, _ file) bool { return c.isLent(head, key) })
	return slices.Sorted(maps.Keys(files)), nil
}

// headAt returns the record that was the head at a time, by the clock of the store: nil if there was none.
func headAt(ctx context.Context, log *replog.Log, head *replog.Record, b bucket.Bucket, at time.Time) (*replog.Record,
	error) {
	from, to := uint64(0), head.Number // record from is not after the time, and record to+1 is
	for from < to {
		middle := from + (to-from+1)/2
		_, info, err := b.Get(ctx, log.Key(middle), replog.MaxRecord)
		if err != nil {
			return nil, err
		}
		if info.Modified.After(at) {
			to = middle - 1
		} else {
			from = middle
		}
	}
	if from == 0 {
		return nil, nil
	}
	return log.Get(ctx, from)
}

// count adds keys to the report.
func (c *collector) count(id string, files map[string]file, keys []string) {
	for _, key := range keys {
		f := files[key]
		c.report.Objects += len(f.names)
		c.report.Bytes += f.bytes
		for _, name := range f.names {
			c.report.Keys = append(c.report.Keys, reposPrefix+id+"/"+name)
		}
	}
}

// condemn appends a record that condemns keys, except those that are in use by then, and returns the head. If another
// collection condemned keys, it returns the head with those.
func (c *collector) condemn(ctx context.Context, log *replog.Log, id string, head *replog.Record,
	keys []string) (*replog.Record, error) {
	return c.append(ctx, log, head, func(head *replog.Record) (*replog.Record, error) {
		if len(head.Condemned) > 0 {
			return nil, nil
		}
		if err := c.examine(ctx, id, head.Forks); err != nil {
			return nil, err
		}
		next := head.Next(replog.KindCondemn, c.options.Node, time.Now())
		next.GC++
		for _, key := range keys {
			if !head.HasKey(key) && !c.isLent(head, key) {
				next.Condemned = append(next.Condemned, key)
			}
		}
		next.Forks = slices.DeleteFunc(next.Forks, func(fork string) bool { return c.uses[fork].hasLeft() })
		if len(next.Condemned) == 0 {
			return nil, nil
		}
		return next, nil
	})
}

// remove deletes the condemned files, and then appends a record that takes them off the list.
func (c *collector) remove(ctx context.Context, log *replog.Log, id string,
	head *replog.Record) (*replog.Record, error) {
	condemned := head.Condemned
	for _, key := range condemned {
		names := replog.FileKeys(key)
		for i := range names {
			names[i] = reposPrefix + id + "/" + names[i]
		}
		if err := c.bucket.Delete(ctx, names...); err != nil {
			return nil, err
		}
	}
	return c.append(ctx, log, head, func(head *replog.Record) (*replog.Record, error) {
		next := head.Next(replog.KindClear, c.options.Node, time.Now())
		next.Condemned = slices.DeleteFunc(next.Condemned, func(key string) bool { return slices.Contains(condemned, key) })
		if len(next.Condemned) == len(head.Condemned) {
			return nil, nil
		}
		return next, nil
	})
}

// append appends the record that prepare makes from the head, and returns the head. prepare returns nil if there is
// nothing to do.
func (c *collector) append(ctx context.Context, log *replog.Log, head *replog.Record,
	prepare func(head *replog.Record) (*replog.Record, error)) (*replog.Record, error) {
	for range maxTries {
		next, err := prepare(head)
		if err != nil {
			return nil, err
		}
		if next == nil {
			return head, nil
		}
		attempt, err := log.Append(ctx, next)
		if err != nil {
			return nil, err
		}
		if attempt.Outcome() == replog.Won {
			return next, nil
		}
		if attempt.Err() != nil { // it is not decided, or the store broke its promise
			return nil, attempt.Err()
		}
		if head, err = log.Latest(ctx, attempt.Winner()); err != nil {
			return nil, err
		}
	}
	return nil, fault.Retry(fault.Unavailable, fault.RetryLater, "the repository changes too fast; try again")
}
