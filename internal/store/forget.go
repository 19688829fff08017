package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// Forgotten is the result of Forget.
type Forgotten struct {
	Repositories int      `json:"repositories"` // that were removed before
	Records      int      `json:"records"`      // that were emptied or deleted
	Objects      int      `json:"objects"`      // other objects that were deleted
	Left         []string `json:"left"`         // what still has the name, or data of a repository
}

// forgetAge is the age of a name from which no node uses it any more, and from which its events are in the event log.
const forgetAge = openLost

// Forget removes what a store knows of removed repositories with a name. The records of the name are deleted. Those of
// the repositories are replaced by records without names, refs and settings, so that no number becomes free: a node
// that was away finds that the repository is deleted. The error is Exists if a repository has the name, and NotFound if
// none ever had.
func Forget(ctx context.Context, b bucket.Bucket, path git.RepoPath, node string) (*Forgotten, error) {
	path = canonical(path)
	done := &Forgotten{Left: []string{}}
	ids, keys, err := namesOf(ctx, b, path)
	if err != nil {
		return nil, err
	}
	var removed []string
	for id := range ids {
		head, err := replog.Open(b, id).Head(ctx)
		switch {
		case fault.Is(err, fault.NotFound): // it was never made
		case err != nil:
			return nil, err
		case slices.Contains(head.Names, path):
			return nil, fault.New(fault.Exists, "%s is a repository: remove it first (packhorse repo remove)", path)
		case !head.Deleted:
			done.Left = append(done.Left, fmt.Sprintf("records of %s, which had the name before", head.Names[0]))
		default:
			removed = append(removed, id)
		}
	}
	for _, id := range removed {
		if err := done.repository(ctx, b, id, node); err != nil {
			return nil, err
		}
	}
	if err := b.Delete(ctx, keys...); err != nil {
		return nil, err
	}
	done.Records += len(keys)
	_, problem, err := deleteVersions(ctx, b, replog.NameKeys(path))
	done.left(problem)
	done.Left = append(done.Left, "events of the last 30 days, logs, and copies of the bucket")
	return done, err
}

func (f *Forgotten) left(problem string) {
	if problem != "" {
		f.Left = append(f.Left, problem)
	}
}

// namesOf returns the IDs of the repositories that have had a name, and the keys of its records.
func namesOf(ctx context.Context, b bucket.Bucket, path git.RepoPath) (ids map[string]bool, keys []string, err error) {
	ids = make(map[string]bool)
	var newest time.Time
	err = bucket.Each(ctx, b, replog.NameKeys(path), func(info bucket.Info) error {
		body, _, err := b.Get(ctx, info.Key, replog.MaxRecord)
		if err != nil {
			return err
		}
		name, err := replog.DecodeName(body)
		if err != nil {
			return fault.Wrap(fault.Corrupt, info.Key+" is damaged", err)
		}
		ids[name.ID] = true
		keys = append(keys, info.Key)
		if info.Modified.After(newest) {
			newest = info.Modified
		}
		return nil
	})
	switch {
	case err != nil:
	case len(keys) == 0:
		err = fault.New(fault.NotFound, "the store has no records of %s", path)
	case time.Since(newest) < forgetAge:
		err = fault.New(fault.Unavailable,
			"%s was changed less than a day ago, and nodes may still use it: try again later", path)
	}
	return ids, keys, err
}

// repository removes what the store has of a deleted repository.
func (f *Forgotten) repository(ctx context.Context, b bucket.Bucket, id, node string) error {
	c := newCollector(b, GCOptions{OlderThan: -time.Hour, Node: node})
	if err := c.collect(ctx, id); err != nil {
		return err
	}
	f.Repositories++
	f.Objects += c.report.Objects
	if files, err := c.files(ctx, id); err != nil || len(files) > 0 {
		f.left(fmt.Sprintf("%d files in repos/%s, which forks borrow", len(files), id))
	}
	err := bucket.Each(ctx, b, reposPrefix+id+"/log/", func(info bucket.Info) error {
		body, _, err := b.Get(ctx, info.Key, replog.MaxRecord)
		if err != nil {
			return err
		}
		record, err := replog.Decode(body)
		if err != nil {
			return fault.Wrap(fault.Corrupt, info.Key+" is damaged", err)
		}
		empty := &replog.Record{Number: record.Number, Txn: record.Txn, Parent: record.Parent, Kind: replog.KindDelete,
			At: record.At, Head: "refs/heads/main", ObjectFormat: record.ObjectFormat, Renames: record.Renames,
			Forks: record.Forks, ObjectsEpoch: record.ObjectsEpoch, GC: record.GC, Condemned: record.Condemned, Deleted: true}
		text, err := empty.Encode()
		if err != nil || bytes.Equal(text, body) {
			return err
		}
		f.Records++
		return b.Put(ctx, info.Key, bytes.NewReader(text), int64(len(text)), sha256.Sum256(text))
	})
	if err != nil {
		return err
	}
	_, problem, err := deleteVersions(ctx, b, reposPrefix+id+"/")
	f.left(problem)
	return err
}
