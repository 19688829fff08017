package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

const (
	checkParallel = 8    // repositories, and records of one
	checkRecent   = 1000 // records that are read without Deep
)

// CheckOptions configure Check. The zero value checks all repositories.
type CheckOptions struct {
	// Deep reads all records, packs and checkpoints, and compares checksums. Without it, only the latest 1,000 records
	// of a repository are read, and objects have to exist with the right size.
	Deep     bool
	Paths    []git.RepoPath // nil: all repositories
	Progress Progress
}

// CheckReport is the result of Check. The numbers count what was checked.
type CheckReport struct {
	Repositories int       `json:"repositories"` // deleted ones included
	Records      int64     `json:"records"`      // that exist
	Objects      int64     `json:"objects"`      // packs, their indexes, and checkpoints that heads name; LFS objects
	Bytes        int64     `json:"bytes"`        // of these objects
	Unnamed      int64     `json:"unnamed"`      // objects that no head names, and LFS objects that are set aside: gc deletes them
	UnnamedBytes int64     `json:"unnamed_bytes"`
	Problems     []Problem `json:"problems"` // sorted by path and key
}

// Check checks the logs, objects and names of repositories. No record is missing, and each follows the one before. The
// objects that heads name exist. The names of a repository lead to it. Nodes may work meanwhile. The error is one of
// the bucket.
func Check(ctx context.Context, b bucket.Bucket, o CheckOptions) (*CheckReport, error) {
	if _, err := ReadIdentity(ctx, b); err != nil {
		return nil, err
	}
	c := &checker{bucket: b, options: o, report: &CheckReport{Problems: []Problem{}}}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(checkParallel)
	err := c.ids(ctx, func(id string, objects map[string]int64) {
		group.Go(func() error { return c.repository(ctx, id, objects) })
	})
	if err = errors.Join(group.Wait(), err); err != nil {
		return nil, err
	}
	slices.SortFunc(c.report.Problems, compareProblems)
	return c.report, nil
}

// checker is a running Check.
type checker struct {
	bucket  bucket.Bucket
	options CheckOptions

	mu     sync.Mutex
	report *CheckReport
}

// ids calls f with the ID of each repository, and with its objects: sizes by key.
func (c *checker) ids(ctx context.Context, f func(id string, objects map[string]int64)) error {
	if c.options.Paths != nil {
		return c.idsOf(ctx, f)
	}
	var id string
	var objects map[string]int64
	err := bucket.Each(ctx, c.bucket, "repos/", func(info bucket.Info) error {
		next, _, _ := strings.Cut(strings.TrimPrefix(info.Key, "repos/"), "/")
		if next != id {
			if id != "" {
				f(id, objects)
			}
			id, objects = next, map[string]int64{}
		}
		objects[info.Key] = info.Size
		return nil
	})
	if id != "" && err == nil {
		f(id, objects)
	}
	return err
}

func (c *checker) idsOf(ctx context.Context, f func(id string, objects map[string]int64)) error {
	for _, path := range c.options.Paths {
		log, err := replog.OpenName(c.bucket, canonical(path))
		if err != nil {
			return err
		}
		name, err := log.Head(ctx)
		if fault.Is(err, fault.NotFound) || err == nil && name.State == replog.Removed {
			err = notFound(path)
		}
		if err != nil {
			return err
		}
		objects, err := c.objects(ctx, name.ID)
		if err != nil {
			return err
		}
		f(name.ID, objects)
	}
	return nil
}

// objects returns the sizes of a repository's objects by key.
func (c *checker) objects(ctx context.Context, id string) (map[string]int64, error) {
	objects := map[string]int64{}
	return objects, bucket.Each(ctx, c.bucket, "repos/"+id+"/", func(info bucket.Info) error {
		objects[info.Key] = info.Size
		return nil
	})
}

// repository checks one repository. If something is missing, it looks again: a node may have changed the repository
// during the listing.
func (c *checker) repository(ctx context.Context, id string, objects map[string]int64) error {
	r := &repositoryCheck{checker: c, id: id, objects: objects, log: replog.Open(c.bucket, id)}
	if err := r.run(ctx); err != nil {
		return err
	}
	if r.problems != nil {
		objects, err := c.objects(ctx, id)
		if err != nil {
			return err
		}
		r = &repositoryCheck{checker: c, id: id, objects: objects, log: r.log}
		if err := r.run(ctx); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report.Repositories++
	c.report.Records += r.count.Records
	c.report.Objects += r.count.Objects
	c.report.Bytes += r.count.Bytes
	c.report.Unnamed += r.count.Unnamed
	c.report.UnnamedBytes += r.count.UnnamedBytes
	c.report.Problems = append(c.report.Problems, r.problems...)
	c.options.Progress.report(int64(c.report.Repositories), 0, r.name())
	return nil
}

// repositoryCheck is the check of one repository.
type repositoryCheck struct {
	*checker
	id      string
	objects map[string]int64
	log     *replog.Log
	head    *replog.Record

	count    CheckReport
	adding   sync.Mutex // guards problems
	problems []Problem
}

func (r *repositoryCheck) name() string {
	if r.head != nil && len(r.head.Names) > 0 {
		return r.head.Names[0].String()
	}
	return r.id
}

const (
	remedyRestore = "restore it from a version of the bucket, or from a copy"
	remedyRecords = "stop all writers, and compare the records with a copy of the bucket"
)

func (r *repositoryCheck) problem(key, remedy, format string, args ...any) {
	r.adding.Lock()
	defer r.adding.Unlock()
	r.problems = append(r.problems, Problem{Path: r.name(), Key: key, Text: fmt.Sprintf(format, args...), Remedy: remedy})
}

// run fills in problems and count. Its error is one of the bucket.
func (r *repositoryCheck) run(ctx context.Context) (err error) {
	r.head, err = r.log.Head(ctx)
	switch {
	case fault.Is(err, fault.NotFound): // an upload that never became a repository
		r.countUnnamed(nil)
		return nil
	case fault.Is(err, fault.Corrupt):
		r.problem("repos/"+r.id+"/log/", remedyRecords, "%v", err)
		return nil
	case err != nil:
		return err
	}
	if err := r.records(ctx); err != nil {
		return err
	}
	if err := r.names(ctx); err != nil {
		return err
	}
	named := r.named()
	for key, f := range named {
		if err := r.object(ctx, key, f); err != nil {
			return err
		}
	}
	if err := r.addLent(ctx, named); err != nil {
		return err
	}
	r.countUnnamed(named)
	if r.head.Deleted {
		return nil
	}
	return r.lfs(ctx)
}

// named returns the objects that the head names, by key.
func (r *repositoryCheck) named() map[string]replog.File {
	named := map[string]replog.File{}
	for i := range r.head.Packs {
		p := &r.head.Packs[i]
		for _, f := range p.Files() {
			named["repos/"+cmp.Or(p.From, r.id)+"/"+p.Key+f.Ext] = f
		}
	}
	if key := r.head.Refs.Checkpoint; key != "" {
		named["repos/"+r.id+"/"+key] = replog.File{Bytes: r.head.Refs.Bytes, SHA256: r.head.Refs.SHA256}
	}
	return named
}

// addLent adds the objects that forks name, so that they are not unnamed.
func (r *repositoryCheck) addLent(ctx context.Context, named map[string]replog.File) error {
	c := newCollector(r.bucket, GCOptions{})
	if err := c.examine(ctx, r.id, r.head.Forks); err != nil {
		return err
	}
	for _, use := range c.uses {
		for _, key := range use.keys {
			for _, name := range replog.FileKeys(key) {
				named[reposPrefix+r.id+"/"+name] = replog.File{}
			}
		}
	}
	return nil
}

// link is what a chain needs of a record. It is empty if the record is missing, damaged or not read.
type link struct{ txn, parent string }

// records checks that no record is missing, and that each follows the one before.
func (r *repositoryCheck) records(ctx context.Context) error {
	first := uint64(1) // that is read
	if !r.options.Deep && r.head.Number > checkRecent {
		first = r.head.Number - checkRecent + 1
	}
	links := make([]link, r.head.Number-first+1)
	links[len(links)-1] = link{r.head.Txn, r.head.Parent}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(checkParallel)
	for n := uint64(1); n < r.head.Number; n++ {
		if _, ok := r.objects[r.log.Key(n)]; !ok {
			r.problem(r.log.Key(n), remedyRestore, "record %d is missing, and the latest is %d", n, r.head.Number)
			continue
		}
		r.count.Records++
		if n >= first {
			group.Go(func() (err error) {
				links[n-first], err = r.read(ctx, n)
				return err
			})
		}
	}
	r.count.Records++ // the head
	if err := group.Wait(); err != nil {
		return err
	}
	for i := 1; i < len(links); i++ {
		before, this := links[i-1].txn, links[i]
		if before != "" && this.txn != "" && this.parent != before {
			n := first + uint64(i)
			r.problem(r.log.Key(n), remedyRecords, "record %d does not follow record %d: its parent is %q and not %q", n, n-1,
				this.parent, before)
		}
	}
	return nil
}

// read reads a record. A damaged one is a problem and not an error.
func (r *repositoryCheck) read(ctx context.Context, n uint64) (link, error) {
	record, err := r.log.Get(ctx, n)
	switch {
	case err == nil:
		return link{record.Txn, record.Parent}, nil
	case fault.Is(err, fault.Corrupt), fault.Is(err, fault.NotFound):
		r.problem(r.log.Key(n), remedyRestore, "%v", err)
		return link{}, nil
	}
	return link{}, err
}

// names checks that each name of the repository leads to it.
func (r *repositoryCheck) names(ctx context.Context) error {
	for _, path := range r.head.Names {
		log, err := replog.OpenName(r.bucket, path)
		if err != nil {
			return err
		}
		name, err := log.Head(ctx)
		switch {
		case err == nil && name.ID == r.id && name.State != replog.Removed:
		case err == nil && name.ID != r.id: // lost a race for the name
		case err == nil:
			r.problem(log.Key(name.Number), remedyRestore, "the name %s was removed, but repository %s has it", path, r.id)
		case fault.Is(err, fault.NotFound), fault.Is(err, fault.Corrupt):
			r.problem(log.Key(1), remedyRestore, "the name %s does not lead to repository %s: %v", path, r.id, err)
		default:
			return err
		}
	}
	return nil
}

// object checks one object that the head names.
func (r *repositoryCheck) object(ctx context.Context, key string, want replog.File) error {
	size, ok := r.objects[key]
	if !ok && !strings.HasPrefix(key, reposPrefix+r.id+"/") { // of a lender
		list, err := r.bucket.List(ctx, key, "", 1)
		if err != nil {
			return err
		}
		if ok = len(list) > 0 && list[0].Key == key; ok {
			size = list[0].Size
		}
	}
	switch {
	case !ok:
		r.problem(key, remedyRestore, "it does not exist, and record %d names it", r.head.Number)
		return nil
	case size != want.Bytes:
		r.problem(key, remedyRestore, "it has %d bytes, and record %d says %d", size, r.head.Number, want.Bytes)
		return nil
	}
	r.count.Objects++
	r.count.Bytes += size
	if !r.options.Deep {
		return nil
	}
	sum, err := checksum(ctx, r.bucket, key)
	switch {
	case errors.Is(err, bucket.ErrNotFound):
		r.problem(key, remedyRestore, "it does not exist, and record %d names it", r.head.Number)
	case err != nil:
		return err
	case sum != want.SHA256:
		r.problem(key, remedyRestore, "its SHA-256 is %s, and record %d says %s", sum, r.head.Number, want.SHA256)
	}
	return nil
}

// checksum reads an object.
func checksum(ctx context.Context, b bucket.Bucket, key string) (replog.Sum, error) {
	r, _, err := b.Open(ctx, key, 0, -1)
	if err != nil {
		return replog.Sum{}, err
	}
	defer r.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, r); err != nil {
		return replog.Sum{}, err
	}
	return replog.Sum(hash.Sum(nil)), nil
}

// countUnnamed counts what the next collections of garbage delete. LFS objects that are not set aside, and locks belong
// to a repository that exists.
func (r *repositoryCheck) countUnnamed(named map[string]replog.File) {
	root, exists := reposPrefix+r.id+"/", r.head != nil && !r.head.Deleted
	for key, size := range r.objects {
		name := strings.TrimPrefix(key, root)
		isInUse := strings.HasPrefix(name, lockPrefix) ||
			strings.HasPrefix(name, lfsPrefix) && !strings.Contains(name, asideMark)
		if strings.HasPrefix(name, "log/") || exists && isInUse {
			continue
		}
		if _, ok := named[key]; !ok {
			r.count.Unnamed++
			r.count.UnnamedBytes += size
		}
	}
}
