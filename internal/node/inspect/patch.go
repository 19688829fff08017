package inspect

import (
	"cmp"
	"context"
	"fmt"
	"strconv"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/lookup"
	"github.com/packhorse-git/packhorse/internal/node/write"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// PatchRequest requests the differences between two revisions.
type PatchRequest struct {
	From, To     string // From "": the first parent of To, or the empty tree
	MergeBase    bool   // compare with the merge base of both
	Paths        []string
	Context      int    // lines
	Whitespace   string // differences to ignore: "", "AT_EOL", "CHANGE" or "ALL"
	NoRenames    bool
	NamesOnly    bool  // without patches
	MaxFiles     int   // 0: 3,000
	MaxFileBytes int   // of the patch of one file; 0: 1 MiB
	MaxBytes     int64 // of all patches; 0: 64 MiB
	Caller       balance.Caller
}

// File is a file that differs.
type File struct {
	Path, OldPath        []byte
	Status               byte // of git diff --name-status
	Similarity           int  // percent, of renames
	OldMode, Mode        uint32
	OldID, ID            git.ObjectID // zero if the file does not exist
	Binary               bool
	Additions, Deletions int
	Patch                []byte
	Truncated            bool // Patch was cut after a line
}

// Summary is the end of a comparison.
type Summary struct {
	Files                int // that were sent, and the lines of their patches
	Additions, Deletions int64
	Truncated            bool // there are more files
	RenameLimit          bool // the search for renames was limited
	From, To             git.ObjectID
}

const (
	maxContext   = 1000
	maxPaths     = 1000
	maxPathBytes = 512 << 10 // of all paths of a request
	// renameLimit is diff.renameLimit (git-config(1)).
	renameLimit = 1000
)

var whitespaceOptions = map[string]string{"AT_EOL": "--ignore-space-at-eol", "CHANGE": "-b", "ALL": "-w"}

// check checks the request and sets the usual limits.
func (q *PatchRequest) check() error {
	q.MaxFiles, q.MaxFileBytes = cmp.Or(q.MaxFiles, 3000), cmp.Or(q.MaxFileBytes, 1<<20)
	q.MaxBytes = cmp.Or(q.MaxBytes, 64<<20)
	for _, l := range []struct {
		field string
		n     int64
		most  int64
	}{
		{"context", int64(q.Context), maxContext}, {"max_files", int64(q.MaxFiles), 100_000},
		{"max_file_bytes", int64(q.MaxFileBytes), 64 << 20}, {"max_bytes", q.MaxBytes, 1 << 30},
		{"paths", int64(len(q.Paths)), maxPaths},
	} {
		if l.n < 0 || l.n > l.most {
			return fault.InField(l.field, fault.New(fault.Invalid, "%d is not between 0 and %d", l.n, l.most))
		}
	}
	if q.Whitespace != "" && whitespaceOptions[q.Whitespace] == "" {
		return fault.InField("ignore_whitespace", fault.New(fault.Invalid, "%.80q is not AT_EOL, CHANGE or ALL",
			q.Whitespace))
	}
	bytes := 0
	for i, path := range q.Paths {
		if err := checkPath(path); err != nil {
			return fault.InField(fmt.Sprintf("paths[%d]", i), err)
		}
		if bytes += len(path) + 1; bytes > maxPathBytes {
			return fault.InField("paths", fault.New(fault.Invalid, "more than %d bytes", maxPathBytes))
		}
	}
	return nil
}

// args returns the arguments of git diff-tree for two trees.
func (q *PatchRequest) args(from, to git.ObjectID) []string {
	args := []string{"-r", "-z", "--raw", "--no-ext-diff", "--no-textconv", "--no-color"}
	if !q.NamesOnly {
		args = append(args, "-p", "--full-index", "-U"+strconv.Itoa(q.Context))
	}
	if q.NoRenames {
		args = append(args, "--no-renames")
	} else {
		args = append(args, "-M", "-l"+strconv.Itoa(renameLimit))
	}
	if option := whitespaceOptions[q.Whitespace]; option != "" {
		args = append(args, option)
	}
	return append(append(args, from.String(), to.String(), "--"), q.Paths...)
}

// Patch calls send with each file that differs, in the order of git diff-tree. The file must not be changed. Errors:
// Invalid and NotFound name the field. Precondition: the histories have no common commit. Exhausted, Deadline.
func (i *Inspector) Patch(ctx context.Context, r *repo.Repo, q PatchRequest, send func(*File) error) (Summary, error) {
	if err := q.check(); err != nil {
		return Summary{}, err
	}
	names, err := i.names(ctx, r)
	if err != nil {
		return Summary{}, err
	}
	defer names.Close()
	sum, trees, err := q.resolve(ctx, r, names)
	if err != nil {
		return sum, err
	}
	if more := int64(q.MaxFileBytes - maxCached); more > 0 && !q.NamesOnly {
		if err := i.Memory.Take(q.Caller, more); err != nil {
			return sum, err
		}
		defer i.Memory.Give(q.Caller, more)
	}
	args := q.args(trees[0], trees[1])
	key := fmt.Sprintf("patch %q %d %d %d", args, q.MaxFiles, q.MaxFileBytes, q.MaxBytes)
	add := func(part any) error {
		switch part := part.(type) {
		case *File:
			return send(part)
		case Summary:
			part.From, part.To = sum.From, sum.To
			sum = part
		}
		return nil
	}
	err = cached(i.cache, r, key, add, func(send func(any, int) error) error {
		p := &patchReader{q: &q, send: func(f *File) error {
			return send(f, cap(f.Patch)+len(f.Path)+len(f.OldPath))
		}}
		err := i.run(ctx, r, q.Caller, command{name: "diff-tree", args: args}, p.read)
		if err != nil {
			return err
		}
		return send(p.sum, 0)
	})
	return sum, err
}

// resolve finds the revisions and their trees.
func (q *PatchRequest) resolve(ctx context.Context, r *repo.Repo, names *lookup.Names) (sum Summary,
	trees [2]git.ObjectID, err error) {
	if sum.To, trees[1], err = names.Tree(q.To); err != nil {
		return sum, trees, fault.InField("to", err)
	}
	from := q.From
	switch {
	case q.MergeBase:
		if from == "" {
			return sum, trees, fault.InField("from", fault.New(fault.Invalid, "merge_base needs two revisions"))
		}
		var bases []git.ObjectID
		if bases, err = q.bases(ctx, r, names); err != nil {
			return sum, trees, err
		}
		from = bases[0].String()
	case from == "" && sum.To != trees[1]:
		parent, err := names.Parent(sum.To)
		if err != nil {
			return sum, trees, err
		}
		if !parent.IsZero() {
			from = parent.String()
		}
	}
	if from == "" {
		sum.From = write.NewObject(r.Format, git.Tree, nil).ID
		trees[0] = sum.From
		return sum, trees, nil
	}
	sum.From, trees[0], err = names.Tree(from)
	return sum, trees, fault.InField("from", err)
}

// bases returns the merge bases of both revisions.
func (q *PatchRequest) bases(ctx context.Context, r *repo.Repo, names *lookup.Names) ([]git.ObjectID, error) {
	from, err := resolve(names, "from", q.From)
	if err != nil {
		return nil, err
	}
	to, err := resolve(names, "to", q.To)
	if err != nil {
		return nil, err
	}
	shallow, err := r.ShallowSet()
	if err != nil {
		return nil, err
	}
	bases, err := r.Graph.MergeBases(ctx, from, []git.ObjectID{to}, shallow)
	if err == nil && len(bases) == 0 {
		err = fault.New(fault.Precondition, "%.80q and %.80q have no common commit", q.From, q.To)
	}
	return bases, err
}
