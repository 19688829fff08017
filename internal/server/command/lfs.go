package command

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/node/gc"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/server/config"
)

func lfsCommand(env Env) *cobra.Command {
	return group(&cobra.Command{
		Use:   "lfs",
		Short: "List, clean, verify and import objects of Git LFS",
		Long: `Lfs manages the LFS objects of the repositories below --root, or below the root of a configuration. It asks the running
server over the socket in its state directory; if none runs, it does the work itself.`,
		Example: `  packhorse lfs list --root /srv/git
  packhorse lfs import team/app /var/lib/gitea/data/lfs --root /srv/git
  packhorse lfs gc --dry-run --config /etc/packhorse.toml`,
	}, lfsList(env), lfsGC(env), lfsVerify(env), lfsImport(env))
}

// lfsClient sends requests about LFS objects to the admin socket of a server, or of the command itself.
type lfsClient struct {
	nodeFinder
	cmd *cobra.Command
}

// newLFSClient completes a command that sends requests about LFS objects.
func newLFSClient(env Env, cmd *cobra.Command) *lfsClient {
	c := &lfsClient{nodeFinder{target: target{env: env}}, cmd}
	c.addFlags(cmd.Flags(), false)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return c
}

// do has the server do work, and reads the result into v. On a terminal it shows the progress.
func (c *lfsClient) do(request *internalv1.RunRequest, v any) error {
	_, err := lfsItems[any](c, request, v)
	return err
}

// lfsItems is do for work whose response has items, which it returns.
func lfsItems[T any](c *lfsClient, request *internalv1.RunRequest, v any) (all []T, err error) {
	all = []T{}
	return all, c.change(c.cmd.Context(), func(server *client.Client) error {
		show, end := countProgress(c.cmd.ErrOrStderr())
		defer end()
		return answerOf(runAdmin(c.cmd.Context(), server, request, func(text json.RawMessage) error {
			all = append(all, *new(T))
			return json.Unmarshal(text, &all[len(all)-1])
		}, show, v))
	})
}

// optionalPath accepts a PATH, or no argument.
func optionalPath(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return fmt.Errorf("%s takes at most one PATH, got %d arguments", cmd.CommandPath(), len(args))
	}
	return nil
}

func lfsList(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list [PATH]", Short: "List repositories with LFS objects, or the objects of one",
		Long: `List shows the repositories with LFS objects or locks, and the number and the size of their objects. SHARED is the size of
the objects that other repositories have, too: they need the space on disk once. QUOTA is lfs.quota of the server or the
repository.

With PATH it shows the objects of one repository, and the times of their last uploads. With --json sizes are in bytes.`,
		Example: "  packhorse lfs list --root /srv/git\n  packhorse lfs list team/app --json --root /srv/git",
		Args:    optionalPath,
	}
	c := newLFSClient(env, cmd)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return c.listObjects(args[0], *asJSON)
		}
		return c.listRepositories(*asJSON)
	}
	return cmd
}

func (c *lfsClient) listRepositories(asJSON bool) error {
	request := &internalv1.RunRequest{Work: internalv1.AdminWork_ADMIN_WORK_LFS_REPOSITORIES}
	all, err := lfsItems[gc.Repository](c, request, nil)
	if err != nil {
		return err
	}
	failed := []gc.Problem{}
	for _, r := range all {
		if r.Error != "" {
			failed = append(failed, gc.Problem{Repository: r.Repository, Problem: r.Error})
		}
	}
	err = printResult(c.cmd, asJSON, all, func(w io.Writer) error {
		table := newTable(w, "REPOSITORY\tOBJECTS\tSIZE\tSHARED\tLOCKS\tQUOTA")
		for _, r := range all {
			quota := "none"
			if r.Quota > 0 {
				quota = humanize.IBytes(uint64(r.Quota))
			}
			if r.Error == "" {
				fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%d\t%s\n", r.Repository, r.Objects, humanize.IBytes(uint64(r.Bytes)),
					humanize.IBytes(uint64(r.Shared.Bytes)), r.Locks, quota)
			}
		}
		err := table.Flush()
		writeLFSProblems(w, failed)
		return err
	})
	if err == nil && len(failed) > 0 {
		err = errUnreadable
	}
	return err
}

var errUnreadable = errors.New("some repositories could not be read")

func (c *lfsClient) listObjects(path string, asJSON bool) error {
	request := &internalv1.RunRequest{Work: internalv1.AdminWork_ADMIN_WORK_LFS_OBJECTS, Name: path}
	all, err := lfsItems[gc.Object](c, request, nil)
	if err != nil {
		return err
	}
	return printResult(c.cmd, asJSON, all, func(w io.Writer) error {
		table := newTable(w, "OBJECT\tSIZE\tUPLOADED\tSHARED")
		for _, o := range all {
			shared := "no"
			if o.Shared {
				shared = "yes"
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", o.OID, humanize.IBytes(uint64(o.Size)),
				o.Time.UTC().Format(time.RFC3339), shared)
		}
		return table.Flush()
	})
}

func lfsGC(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "gc [PATH]", Short: "Remove LFS objects that no repository needs",
		Long: `Gc removes LFS objects of all repositories, or of the one at PATH: those that none of its pointer files names, in any
commit. Hidden and unreachable commits count, too. It keeps objects that were uploaded within lfs.grace, because a push
may follow. Then it removes the objects that no repository has any more from the disk of the server. Uploads and pushes
may run meanwhile.

Repositories with a working tree keep all objects, and so do those without any pointer file. lfs.grace in the
configuration of a repository overrides --grace. If no server runs, --config or --grace has to name the grace.

A server with maintenance.enabled does the same once a day, except in a store. There a removed object comes back when a
client asks for it, and a run after the grace has passed once more frees it.`,
		Example: `  packhorse lfs gc --dry-run --root /srv/git
  packhorse lfs gc team/app --root /srv/git
  packhorse lfs gc --config /etc/packhorse.toml`,
		Args: optionalPath,
	}
	c := newLFSClient(env, cmd)
	asJSON := jsonFlag(cmd)
	dryRun := cmd.Flags().Bool("dry-run", false, "only list what would be removed")
	grace := cmd.Flags().Duration("grace", 0,
		"keep objects that are younger than `DURATION`, at least 1h (default lfs.grace)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		request := &internalv1.RunRequest{Work: internalv1.AdminWork_ADMIN_WORK_LFS_GC, Name: strings.Join(args, ""),
			DryRun: *dryRun}
		switch {
		case *grace >= time.Hour:
			request.Grace = durationpb.New(*grace)
		case cmd.Flags().Changed("grace"):
			return usage(fmt.Errorf("--grace is %s; it has to be at least 1h", *grace))
		case c.config == "":
			if err := c.checkServer(); err != nil {
				return err
			}
		}
		var result struct {
			Objects []gc.Removed `json:"objects"`
			gc.Garbage
		}
		var err error
		if result.Objects, err = lfsItems[gc.Removed](c, request, &result.Garbage); err != nil {
			return err
		}
		err = printResult(cmd, *asJSON, result, func(w io.Writer) error {
			if len(result.Objects) > 0 {
				table := newTable(w, "OBJECT\tSIZE\tREPOSITORY")
				for _, o := range result.Objects {
					fmt.Fprintf(table, "%s\t%s\t%s\n", o.OID, humanize.IBytes(uint64(o.Size)), o.Repository)
				}
				table.Flush()
			}
			writeLFSProblems(w, slices.Concat(result.Failed, result.Skipped))
			g, examined := &result.Garbage, english.Plural(int(result.Repositories), "repository", "")
			if *dryRun {
				_, err := fmt.Fprintf(w, "examined %s: would remove %s\n", examined, describeUsage(g.Removed))
				return err
			}
			_, err := fmt.Fprintf(w, "examined %s: removed %s, freed %s\n", examined, describeUsage(g.Removed),
				humanize.IBytes(uint64(g.Freed.Bytes)))
			return err
		})
		if err == nil && len(result.Failed) > 0 {
			err = errors.New("some repositories could not be read, and keep their objects")
		}
		return err
	}
	return cmd
}

// describeUsage returns a number of objects and their size, as in "1 object (12 KiB)".
func describeUsage(u objects.Usage) string {
	return fmt.Sprintf("%s (%s)", english.Plural(int(u.Objects), "object", ""), humanize.IBytes(uint64(u.Bytes)))
}

// checkServer returns an error if no server answers that knows its lfs.grace.
func (c *lfsClient) checkServer() error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	if knock(config.AdminSocket(cfg.State)) != nil {
		return usage(errors.New("no server runs on the repositories, so lfs.grace is not known: name the server's " +
			"configuration with --config FILE, or the grace with --grace DURATION"))
	}
	return nil
}

func writeLFSProblems(w io.Writer, problems []gc.Problem) {
	for _, p := range problems {
		subject := cmp.Or(p.Repository, "in no repository")
		if p.OID != "" {
			subject += ": " + p.OID
		}
		fmt.Fprintf(w, "%s: %s\n", subject, p.Problem)
	}
}

func lfsVerify(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "verify [PATH]", Short: "Compare LFS objects with their checksums",
		Long: `Verify reads the LFS objects of all repositories, or of the one at PATH, and compares them with their IDs. A damaged object
is moved to .packhorse/lfs/damaged below the root, or to lfs/damaged of its repository, and clients can upload it again.
Verify also reports objects that pointer files name, but the repository does not have.

It exits with 1 if objects are damaged or missing, or if repositories could not be read. A server does the same in the
background, see lfs.scrub_interval. In a store, use packhorse store check --deep instead.`,
		Example: "  packhorse lfs verify --root /srv/git\n  packhorse lfs verify team/app --json --root /srv/git",
		Args:    optionalPath,
	}
	c := newLFSClient(env, cmd)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var result gc.Verification
		request := &internalv1.RunRequest{Work: internalv1.AdminWork_ADMIN_WORK_LFS_VERIFY, Name: strings.Join(args, "")}
		if err := c.do(request, &result); err != nil {
			return err
		}
		err := printResult(cmd, *asJSON, result, func(w io.Writer) error {
			writeLFSProblems(w, slices.Concat(result.Missing, result.Failed, result.Skipped, result.Damaged))
			damaged := make(map[string]bool) // repositories can share an object
			for _, p := range result.Damaged {
				damaged[p.OID] = true
			}
			_, err := fmt.Fprintf(w, "verified %s: %d damaged, %d missing\n", describeUsage(result.Verified), len(damaged),
				len(result.Missing))
			return err
		})
		switch {
		case err != nil:
		case len(result.Damaged) > 0:
			err = errors.New("some objects were damaged: let clients upload them again with git lfs push --all, or copy them " +
				"from a backup with packhorse lfs import")
		case len(result.Missing) > 0:
			err = errors.New("some objects are missing: upload them with git lfs push --all from a clone that has them, or " +
				"copy them from a directory with packhorse lfs import")
		case len(result.Failed) > 0:
			err = errUnreadable
		}
		return err
	}
	return cmd
}

func lfsImport(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "import PATH DIR", Short: "Add the LFS objects of a repository from a directory",
		Long: `Import adds the LFS objects that the pointer files of a repository name, and that it does not have, from the directory DIR.
Objects are copied and compared with their IDs; DIR is not changed. The user of the server needs permission to read it. It
lists objects that DIR does not have, or that are damaged there, and then exits with 1.

DIR may be the directory of objects of Git LFS (.git/lfs), lfs-test-server (lfs-content), Gitea (data/lfs) or GitLab
(shared/lfs-objects). First import or push the Git repository itself.`,
		Example: `  packhorse lfs import team/app /var/lib/gitea/data/lfs --root /srv/git
  packhorse lfs import team/app /var/opt/gitlab/gitlab-rails/shared/lfs-objects --config /etc/packhorse.toml`,
		Args: exactArgs(2, "a PATH and a DIR"),
	}
	c := newLFSClient(env, cmd)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		dir, err := filepath.Abs(args[1])
		if err != nil {
			return err
		}
		var result gc.Imported
		request := &internalv1.RunRequest{Work: internalv1.AdminWork_ADMIN_WORK_LFS_IMPORT, Name: args[0], Dir: dir}
		if err := c.do(request, &result); err != nil {
			return err
		}
		err = printResult(cmd, *asJSON, result, func(w io.Writer) error {
			writeLFSProblems(w, slices.Concat(result.Missing, result.Damaged))
			_, err := fmt.Fprintf(w, "imported %s: %d present before, %d missing, %d damaged\n",
				describeUsage(result.Imported), result.Present.Objects, len(result.Missing), len(result.Damaged))
			return err
		})
		switch lacking := len(result.Missing) + len(result.Damaged); {
		case err != nil || lacking == 0:
		case len(result.Damaged) == 0 && result.Imported.Objects == 0:
			err = fmt.Errorf("no missing object is in %s: packhorse lfs import --help names the directories of other servers, "+
				"and git lfs push --all uploads the objects from a clone", dir)
		default:
			err = fmt.Errorf("the repository still needs %s: upload with git lfs push --all from a clone that has them, or "+
				"import from another directory", english.Plural(lacking, "object", ""))
		}
		return err
	}
	return cmd
}
