package lookup

import (
	"bytes"
	"context"
	"fmt"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

const (
	usualLog     = 100
	maxLog       = 10_000
	maxVisited   = 2_000_000 // commits that one log visits
	maxRevisions = 1000
	maxBatch     = 100       // commits
	batchBytes   = 256 << 10 // bytes of messages at which a batch is full
)

// LogRequest requests history.
type LogRequest struct {
	Revisions   []string // list commits reachable from these; none: HEAD
	Exclude     []string // do not list commits reachable from these
	Path        string   // list only commits that change it, simplified as by git log -- path; empty: all
	FirstParent bool     // follow only first parents
	Author      string   // list only commits whose author, NAME <EMAIL>, contains this in any case; empty: all
	Message     string   // list only commits whose message contains this in any case; empty: all
	Limit       int      // maximum number of commits, up to 10,000; 0: 100
	Skip        int      // number of commits to skip
	NoWalk      bool     // list only the commits of Revisions, in their order; all other fields are ignored
}

// Log calls send with the commits in batches of up to 100, in the default order of git log. The next commit is always
// the latest by committer's date among the revisions and the parents of earlier commits. The history of a shallow
// repository ends where the repository does. A log that visits more than 2,000,000 commits fails with an error of kind
// Invalid.
func (l *Reader) Log(ctx context.Context, r *repo.Repo, q LogRequest, send func([]Commit) error) error {
	if q.Limit < 0 || q.Skip < 0 {
		return fault.New(fault.Invalid, "limit %d and skip %d must not be less than 0", q.Limit, q.Skip)
	}
	if len(q.Revisions)+len(q.Exclude) > maxRevisions {
		return fault.New(fault.Invalid, "more than %d revisions", maxRevisions)
	}
	if err := checkPath(q.Path); err != nil {
		return err
	}
	if q.Limit == 0 {
		q.Limit = usualLog
	}
	if len(q.Revisions) == 0 {
		q.Revisions = []string{string(git.HEAD)}
	}
	c, err := l.begin(ctx, r)
	if err != nil {
		return err
	}
	defer c.end()
	ids, err := c.log(q)
	if err != nil {
		return err
	}
	return c.sendCommits(ids, send)
}

// log finds the commits.
func (c *operation) log(q LogRequest) ([]git.ObjectID, error) {
	o := graph.LogOptions{FirstParent: q.FirstParent, Skip: q.Skip, Limit: min(q.Limit, maxLog), MaxVisited: maxVisited}
	starts, err := c.commitsOf("revisions", q.Revisions)
	if err != nil || q.NoWalk {
		return starts, err
	}
	if o.Exclude, err = c.commitsOf("exclude", q.Exclude); err != nil {
		return nil, err
	}
	if q.Path != "" {
		o.Same = newPathMemo(c, q.Path).same
	}
	if q.Author != "" || q.Message != "" {
		o.Keep = c.matcher(q)
	}
	shallow, err := c.repo.ShallowSet()
	if err != nil {
		return nil, err
	}
	return c.repo.Graph.Log(c.ctx, starts, shallow, o)
}

// matcher returns a function that reports whether a commit has the texts of a request. It reads each commit.
func (c *operation) matcher(q LogRequest) func(git.ObjectID) (bool, error) {
	author, message := bytes.ToLower([]byte(q.Author)), bytes.ToLower([]byte(q.Message))
	return func(id git.ObjectID) (bool, error) {
		commit, err := c.commit(id)
		if err != nil {
			return false, err
		}
		by := bytes.ToLower(fmt.Appendf(nil, "%s <%s>", commit.Author.Name, commit.Author.Email))
		return bytes.Contains(by, author) && bytes.Contains(bytes.ToLower(commit.Message), message), nil
	}
}

// commitsOf finds the commits that the revisions in a field of a request name.
func (c *operation) commitsOf(field string, revisions []string) ([]git.ObjectID, error) {
	ids := make([]git.ObjectID, len(revisions))
	for i, revision := range revisions {
		var err error
		if ids[i], err = c.commitOf(revision); err != nil {
			return nil, fault.InField(fmt.Sprintf("%s[%d]", field, i), err)
		}
	}
	return ids, nil
}

func (c *operation) sendCommits(ids []git.ObjectID, send func([]Commit) error) error {
	var batch []Commit
	size := 0
	for i, id := range ids {
		commit, err := c.commit(id)
		if err != nil {
			return err
		}
		batch = append(batch, commit)
		size += len(commit.Message) + len(commit.Parents)*c.repo.Format.HexSize()
		if len(batch) == maxBatch || size >= batchBytes || i == len(ids)-1 {
			if err := send(batch); err != nil {
				return err
			}
			batch, size = batch[:0], 0
		}
	}
	return nil
}
