package command

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/adminapi"
	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/storage"
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

// do sends a request, and reads the result into v. item is called with each item of a list; nil: there are none. On a
// terminal the progress is shown.
func (c *lfsClient) do(method, path string, query url.Values, item func(json.RawMessage) error, v any) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	ctx := c.cmd.Context()
	return c.change(ctx, func(*client.Client) error {
		show, end := terminalProgress(c.cmd.ErrOrStderr())
		defer end()
		return askLines(ctx, config.AdminSocket(cfg.State), method, path+"?"+query.Encode(), func(e adminapi.LFSEvent) error {
			switch {
			case e.Error != "":
				return errors.New(e.Error)
			case e.Item != nil && item != nil:
				return item(e.Item)
			case e.Progress != nil && show != nil:
				show(e.Progress.Done, e.Progress.Total, e.Progress.What)
			case e.Result != nil && v != nil:
				return json.Unmarshal(e.Result, v)
			}
			return nil
		})
	})
}

// askLines sends a request to an admin socket, and calls do with each line of the response until it returns an error.
func askLines(ctx context.Context, socket, method, path string, do func(adminapi.LFSEvent) error) error {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, nil)
	if err != nil {
		return err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return fmt.Errorf("ask the server at %s: %w", socket, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the server at %s answers %s: is its version the same?", socket, response.Status)
	}
	lines := json.NewDecoder(response.Body)
	for {
		var e adminapi.LFSEvent
		if err := lines.Decode(&e); err != nil {
			return fmt.Errorf("the answer of the server at %s ended early: %w", socket, err)
		}
		if err := do(e); err != nil || e.Result != nil {
			return err
		}
	}
}

func lfsList(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list [PATH]", Short: "List repositories with LFS objects, or the objects of one",
		Long: `List shows the repositories with LFS objects or locks, and the number and the size of their objects. SHARED is the size of
the objects that other repositories have, too.

With PATH it shows the objects of one repository. A line has the ID, the size in bytes and the time of the last upload.`,
		Example: "  packhorse lfs list --root /srv/git\n  packhorse lfs list team/app --json --root /srv/git",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("%s takes one PATH, got %d arguments", cmd.CommandPath(), len(args))
			}
			return nil
		},
	}
	c := newLFSClient(env, cmd)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path, query := "/lfs", url.Values{}
		if len(args) > 0 {
			path, query = "/lfs/objects", url.Values{"path": args}
		}
		out := bufio.NewWriter(cmd.OutOrStdout())
		table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		all := []json.RawMessage{}
		if len(args) == 0 && !*asJSON {
			fmt.Fprintln(table, "REPOSITORY\tOBJECTS\tSIZE\tSHARED\tLOCKS\tQUOTA")
		}
		err := c.do(http.MethodGet, path, query, func(item json.RawMessage) error {
			switch {
			case *asJSON:
				all = append(all, item)
				return nil
			case len(args) > 0:
				return writeLFSObject(out, item)
			}
			return writeLFSRepository(table, item)
		}, nil)
		if err != nil {
			return err
		}
		if *asJSON {
			return encodeJSON(cmd.OutOrStdout(), all)
		}
		return errors.Join(table.Flush(), out.Flush())
	}
	return cmd
}

func writeLFSRepository(w io.Writer, item json.RawMessage) error {
	var r storage.LFSRepository
	if err := json.Unmarshal(item, &r); err != nil {
		return err
	}
	if r.Error != "" {
		_, err := fmt.Fprintf(w, "%s\t%s\n", r.Repository, r.Error)
		return err
	}
	quota := "none"
	if r.Quota > 0 {
		quota = humanize.IBytes(uint64(r.Quota))
	}
	_, err := fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%d\t%s\n", r.Repository, r.Objects, humanize.IBytes(uint64(r.Bytes)),
		humanize.IBytes(uint64(r.Shared.Bytes)), r.Locks, quota)
	return err
}

func writeLFSObject(w io.Writer, item json.RawMessage) error {
	var o storage.LFSObject
	if err := json.Unmarshal(item, &o); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%s %12d  %s\n", o.OID, o.Size, o.Time.UTC().Format(time.RFC3339))
	return err
}

func lfsGC(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "gc", Short: "Remove LFS objects that no repository needs",
		Long: `Gc removes the objects of each repository that none of its pointer files names, in any commit, also one that is hidden or
unreachable. It keeps objects that were uploaded within lfs.grace, because a push may follow. Then it removes the objects
that no repository has any more from the disk. Uploads and pushes may run meanwhile. Repositories with a working tree are
left alone.

Repositories that have objects, but no pointer file at all, keep their objects, because other repositories may use them.
If no server runs, the grace is that of --config or --grace.

A server with maintenance.enabled does the same once a day.`,
		Example: "  packhorse lfs gc --dry-run --root /srv/git\n  packhorse lfs gc --config /etc/packhorse.toml",
		Args:    noArgs,
	}
	c := newLFSClient(env, cmd)
	asJSON := jsonFlag(cmd)
	dryRun := cmd.Flags().Bool("dry-run", false, "only report what would be removed")
	grace := cmd.Flags().Duration("grace", 0,
		"keep objects that are younger than `DURATION`, at least 1h (default lfs.grace)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var result storage.LFSGarbage
		query, verb := url.Values{}, "removed"
		if *dryRun {
			query, verb = url.Values{"dry_run": {"true"}}, "would remove"
		}
		switch {
		case *grace >= time.Hour:
			query.Set("grace", grace.String())
		case cmd.Flags().Changed("grace"):
			return usage(fmt.Errorf("--grace is %s; it has to be at least 1h", *grace))
		case c.config == "":
			if err := c.checkServer(); err != nil {
				return err
			}
		}
		if err := c.do(http.MethodPost, "/lfs/gc", query, nil, &result); err != nil {
			return err
		}
		err := error(nil)
		if *asJSON {
			err = encodeJSON(cmd.OutOrStdout(), result)
		} else {
			writeLFSProblems(cmd.OutOrStdout(), result.Failed)
			writeLFSProblems(cmd.OutOrStdout(), result.Skipped)
			freed := ", freed " + humanize.IBytes(uint64(result.Freed.Bytes))
			if *dryRun {
				freed = ""
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %d objects (%s) of %d repositories%s\n", verb,
				result.Removed.Objects, humanize.IBytes(uint64(result.Removed.Bytes)), result.Repositories, freed)
		}
		if err == nil && len(result.Failed) > 0 {
			err = errors.New("some repositories could not be read, and keep their objects")
		}
		return err
	}
	return cmd
}

// checkServer returns an error if no server answers that knows its lfs.grace.
func (c *lfsClient) checkServer() error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	conn, err := net.DialTimeout("unix", config.AdminSocket(cfg.State), adminapi.Timeout)
	if err != nil {
		return usage(errors.New("no server runs on the repositories, so lfs.grace is not known: name the server's " +
			"configuration with --config FILE, or the grace with --grace DURATION"))
	}
	return conn.Close()
}

func writeLFSProblems(w io.Writer, problems []storage.LFSProblem) {
	for _, p := range problems {
		subject := cmp.Or(p.Repository, "in no repository")
		if p.Object != "" {
			subject += ": " + p.Object
		}
		fmt.Fprintf(w, "%s: %s\n", subject, p.Problem)
	}
}

func lfsVerify(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "verify [PATH]", Short: "Compare LFS objects with their checksums",
		Long: `Verify reads the LFS objects of all repositories, or of the one at PATH, and compares them with their IDs. A damaged object
is moved aside, into a directory named damaged beside the objects, and clients can upload it again. Verify also reports
objects that pointer files name, but the repository does not have.

A server does the same in the background, see lfs.scrub_interval. It exits with 1 if objects are damaged or missing.`,
		Example: "  packhorse lfs verify --root /srv/git\n  packhorse lfs verify team/app --json --root /srv/git",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("%s takes one PATH, got %d arguments", cmd.CommandPath(), len(args))
			}
			return nil
		},
	}
	c := newLFSClient(env, cmd)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var result storage.LFSVerification
		query := url.Values{}
		if len(args) > 0 {
			query = url.Values{"path": args}
		}
		if err := c.do(http.MethodPost, "/lfs/verify", query, nil, &result); err != nil {
			return err
		}
		err := error(nil)
		if *asJSON {
			err = encodeJSON(cmd.OutOrStdout(), result)
		} else {
			for _, problems := range [][]storage.LFSProblem{result.Missing, result.Failed, result.Skipped, result.Damaged} {
				writeLFSProblems(cmd.OutOrStdout(), problems)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "verified %d objects (%s): %d damaged, %d missing\n",
				result.Verified.Objects, humanize.IBytes(uint64(result.Verified.Bytes)), len(result.Damaged), len(result.Missing))
		}
		switch {
		case err != nil:
		case len(result.Damaged) > 0:
			err = errors.New("some objects were damaged: let clients upload them again with git lfs push --all, or copy them " +
				"from a backup with packhorse lfs import")
		case len(result.Missing) > 0:
			err = errors.New("some objects are missing: upload them with git lfs push --all from a clone that has them, or " +
				"copy them from a directory with packhorse lfs import")
		case len(result.Failed) > 0:
			err = errors.New("some repositories could not be read")
		}
		return err
	}
	return cmd
}

func lfsImport(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "import PATH DIR", Short: "Add the LFS objects of a repository from a directory",
		Long: `Import adds the LFS objects that the pointer files of a repository name, and that it does not have, from the directory DIR.
Objects are copied and compared with their IDs; DIR is not changed. The user of the server needs permission to read it.

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
		var result storage.LFSImported
		query := url.Values{"path": {args[0]}, "dir": {dir}}
		if err := c.do(http.MethodPost, "/lfs/import", query, nil, &result); err != nil {
			return err
		}
		if *asJSON {
			err = encodeJSON(cmd.OutOrStdout(), result)
		} else {
			writeLFSProblems(cmd.OutOrStdout(), result.Missing)
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "imported %d objects (%s), %d were there, %d are missing\n",
				result.Imported.Objects, humanize.IBytes(uint64(result.Imported.Bytes)), result.Present.Objects,
				len(result.Missing))
		}
		if err == nil && len(result.Missing) > 0 {
			err = errors.New("some objects are missing: see the list")
		}
		return err
	}
	return cmd
}
