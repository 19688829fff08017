package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/write"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

const (
	maxContext   = 1000 // lines
	maxFiles     = 100_000
	maxFileBytes = 8 << 20
	maxBytes     = 1 << 30
	maxPaths     = 1000
	maxPathBytes = 512 << 10 // of all paths of a request
	// renameLimit is diff.renameLimit (git-config(1)).
	renameLimit = 1000
)

var whitespaceOptions = map[string]string{"": "", "AT_EOL": "--ignore-space-at-eol", "CHANGE": "-b", "ALL": "-w"}

// patchArgs checks a request, sets the usual limits in it, and returns the arguments of git diff-tree for revisions.
func patchArgs(q *packhorsev1.PatchRequest, from, to git.ObjectID) ([]string, error) {
	q.MaxFiles, q.MaxFileBytes = cmp.Or(q.GetMaxFiles(), 3000), cmp.Or(q.GetMaxFileBytes(), 1<<20)
	q.MaxBytes = cmp.Or(q.GetMaxBytes(), 64<<20)
	for _, l := range []struct {
		field   string
		n, most int64
	}{
		{"context", int64(q.GetContext()), maxContext}, {"max_files", int64(q.GetMaxFiles()), maxFiles},
		{"max_file_bytes", int64(q.GetMaxFileBytes()), maxFileBytes}, {"max_bytes", q.GetMaxBytes(), maxBytes},
		{"paths", int64(len(q.GetPaths())), maxPaths},
	} {
		if l.n < 0 || l.n > l.most {
			return nil, fault.InvalidField(l.field, "%d is not between 0 and %d", l.n, l.most)
		}
	}
	bytes := 0
	for i, path := range q.GetPaths() {
		if err := checkPath(path); err != nil {
			return nil, fault.InField(fmt.Sprintf("paths[%d]", i), err)
		}
		if bytes += len(path); bytes > maxPathBytes {
			return nil, fault.InvalidField("paths", "more than %d bytes", maxPathBytes)
		}
	}
	args := []string{"-r", "-z", "--raw", "--no-ext-diff", "--no-textconv", "--no-color"}
	if !q.GetNamesOnly() {
		args = append(args, "-p", "--full-index")
		if q.Context != nil {
			args = append(args, "-U"+strconv.Itoa(int(q.GetContext())))
		}
	}
	if q.GetNoRenames() {
		args = append(args, "--no-renames")
	} else {
		args = append(args, "-M", "-l"+strconv.Itoa(renameLimit))
	}
	option, isKnown := whitespaceOptions[q.GetIgnoreWhitespace()]
	if !isKnown {
		return nil, fault.InvalidField("ignore_whitespace", "%.80q is not AT_EOL, CHANGE or ALL", q.GetIgnoreWhitespace())
	}
	if option != "" {
		args = append(args, option)
	}
	return append(append(args, from.String(), to.String(), "--"), q.GetPaths()...), nil
}

// Patch sends each file that differs, in the order of git diff-tree, and then a summary. The error is Precondition if
// the histories have no common commit.
func (c *Call) Patch(q *packhorsev1.PatchRequest, send func(*packhorsev1.PatchResponse) error) error {
	from, to, err := c.revisions(q)
	if err != nil {
		return err
	}
	args, err := patchArgs(q, from, to)
	if err != nil {
		return err
	}
	p := &patchReader{q: q, send: send, left: q.GetMaxBytes(),
		sum: &packhorsev1.PatchSummary{FromOid: from.String(), ToOid: to.String()}}
	if err = c.cached(command{name: "diff-tree", args: args}, p.read); err != nil && !errors.Is(err, errEnough) {
		return err
	}
	return send(&packhorsev1.PatchResponse{Part: &packhorsev1.PatchResponse_Summary{Summary: p.sum}})
}

// revisions resolves the revisions of a comparison: commits or trees.
func (c *Call) revisions(q *packhorsev1.PatchRequest) (from, to git.ObjectID, err error) {
	resolve := c.names.Treeish
	if q.GetMergeBase() {
		resolve = c.names.Commit
	}
	if to, err = resolve(q.GetTo()); err != nil {
		return from, to, fault.InField("to", err)
	}
	switch {
	case q.GetFrom() != "":
		from, err = resolve(q.GetFrom())
	case q.GetMergeBase():
		err = fault.New(fault.Invalid, "merge_base needs two revisions")
	default:
		from, err = c.names.Parent(to)
	}
	if err != nil {
		return from, to, fault.InField("from", err)
	}
	if q.GetMergeBase() {
		bases, err := c.Lookups.MergeBase(c.ctx, c.repo, []string{from.String(), to.String()})
		if err == nil && len(bases) == 0 {
			err = fault.New(fault.Precondition, "%.80q and %.80q have no common commit", q.GetFrom(), q.GetTo())
		}
		if err != nil {
			return from, to, err
		}
		from = bases[0]
	}
	if from.IsZero() {
		from = write.NewObject(c.repo.Format, git.Tree, nil).ID
	}
	return from, to, nil
}
