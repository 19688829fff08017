package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// PromoteOptions configure Promote.
type PromoteOptions struct {
	DryRun bool // only report
}

// PromoteReport is the result of Promote.
type PromoteReport struct {
	ID string `json:"id,omitempty"` // of the store from now on; empty with PromoteOptions.DryRun
	// Dropped has the repositories that lost their latest records, because the copy does not have all objects of them.
	Dropped []Problem `json:"dropped"`
}

// Promote makes the copy of a store a store of its own: it gets another ID, so nodes of the former store refuse it. No
// node may use the copy meanwhile.
//
// Bucket replication copies objects in any order. So the copy may have records without their objects, or without
// earlier records. Promote removes those records: each repository then is in the latest state that is complete in the
// copy. A repository without any complete state is an error, and nothing is changed then.
func Promote(ctx context.Context, b bucket.Bucket, o PromoteOptions) (*PromoteReport, error) {
	id, err := ReadIdentity(ctx, b)
	if err != nil {
		return nil, err
	}
	report := &PromoteReport{Dropped: []Problem{}}
	var remove []string
	c := &checker{bucket: b}
	var failed error
	heads := map[string]*replog.Record{} // from now on
	err = c.ids(ctx, func(id string, objects map[string]int64) {
		if failed == nil {
			r := &repositoryCheck{checker: c, id: id, objects: objects, log: replog.Open(b, id)}
			failed = findIncomplete(ctx, r, &remove, report)
			heads[id] = r.head
		}
	})
	unlisted, lendErr := findUnlisted(heads)
	if err = errors.Join(failed, err); err == nil {
		err = lendErr
	}
	if err != nil {
		return nil, err
	}
	if o.DryRun {
		return report, nil
	}
	if err := b.Delete(ctx, remove...); err != nil {
		return nil, err
	}
	for lender, forks := range unlisted {
		if err := listForks(ctx, b, lender, forks); err != nil {
			return nil, err
		}
	}
	id.ID = replog.NewID()
	report.ID = id.ID
	text := id.encode()
	return report, b.Put(ctx, IdentityKey, bytes.NewReader(text), int64(len(text)), sha256.Sum256(text))
}

// findUnlisted returns forks by lenders whose heads do not list them. The copy may not have the records that do, or the
// fork is in an earlier state, in which it borrowed more. An error means that a borrowed pack is about to be deleted.
func findUnlisted(heads map[string]*replog.Record) (map[string][]string, error) {
	unlisted := map[string][]string{}
	for id, head := range heads {
		if head == nil {
			continue
		}
		for _, p := range head.Packs {
			lender := heads[p.From]
			switch {
			case p.From == "":
			case lender == nil || slices.Contains(lender.Condemned, p.Key):
				return nil, fault.New(fault.Corrupt, "repository %s borrows %s of repository %s, which is condemned: "+
					"remove all objects below repos/%[1]s/", id, p.Key, p.From)
			case !slices.Contains(lender.Forks, id) && !slices.Contains(unlisted[p.From], id):
				unlisted[p.From] = append(unlisted[p.From], id)
			}
		}
	}
	return unlisted, nil
}

// listForks appends a record that lists forks.
func listForks(ctx context.Context, b bucket.Bucket, lender string, forks []string) error {
	log := replog.Open(b, lender)
	head, err := log.Head(ctx)
	if err != nil {
		return err
	}
	_, err = newCollector(b, GCOptions{}).append(ctx, log, head, func(head *replog.Record) (*replog.Record, error) {
		next := head.Next(replog.KindFork, "promote", time.Now())
		next.Forks = append(next.Forks, forks...)
		slices.Sort(next.Forks)
		next.Forks = slices.Compact(next.Forks)
		return next, nil
	})
	return err
}

// findIncomplete adds the keys of records that are not complete in the copy.
func findIncomplete(ctx context.Context, r *repositoryCheck, remove *[]string, report *PromoteReport) error {
	newest, err := r.newest(ctx)
	if err != nil || newest == 0 {
		return err
	}
	if _, ok := r.objects[r.log.Key(newest)]; !ok { // it came after the listing, perhaps with objects that are not in it
		return fault.New(fault.Invalid, "%s was written meanwhile: stop the nodes that use this store, or wait for the end "+
			"of its replication", r.log.Key(newest))
	}
	last := uint64(0) // the last record without a gap before it
	for last < newest {
		if _, ok := r.objects[r.log.Key(last+1)]; !ok {
			break
		}
		last++
	}
	for ; last > 0; last-- {
		if r.head, err = r.log.Get(ctx, last); err != nil {
			return err
		}
		r.problems = nil
		for key, f := range r.named() {
			if err := r.object(ctx, key, f); err != nil {
				return err
			}
		}
		if r.problems == nil {
			break
		}
	}
	switch last {
	case newest:
		return nil
	case 0:
		return fault.New(fault.Corrupt, "repository %s (%s) is not complete in any state: copy its objects again, or remove "+
			"all objects below repos/%[2]s/", r.name(), r.id)
	}
	for n := last + 1; n <= newest; n++ {
		*remove = append(*remove, r.log.Key(n)) // a missing key is fine
	}
	r.problem(r.log.Key(last+1), "",
		"the copy does not have all objects of records %d to %d: the repository is in the state "+
			"of record %d", last+1, newest, last)
	report.Dropped = append(report.Dropped, r.problems...)
	return nil
}

// newest returns the number of the newest record that exists; 0: none.
func (r *repositoryCheck) newest(ctx context.Context) (uint64, error) {
	head, err := r.log.Head(ctx)
	if fault.Is(err, fault.NotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	r.head = head
	return head.Number, nil
}
