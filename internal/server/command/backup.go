package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/operations/backup"
	"github.com/packhorse-git/packhorse/internal/server/cli"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
	"github.com/packhorse-git/packhorse/internal/store"
)

func backupCommand(env Env) *cobra.Command {
	t := &target{env: env}
	cmd := &cobra.Command{
		Use:   "backup DIR",
		Short: "Copy the repositories, state and configuration of a server to a directory",
		Long: `Backup copies the repositories of a server with their LFS objects, locks, hooks and settings to DIR, and its tokens, keys,
rules, deliveries and configuration. The server may run: each repository is copied as it was at one moment, with every
push that was reported before the command began.

The next backup to the same DIR copies what has changed. Packs are copied once. The backup before stays complete until
the new one is; an interrupted backup is continued by the next. DIR has plain bare repositories, which git can read.

A repository that is damaged is reported, and the backup keeps its former copy. The command then exits with 1, as it does
if anything else is not in the backup. Repositories and parts of the state that were removed from the server are named
and removed from DIR. If most of them are gone, or the root is another one, nothing is changed without --allow-removals.
With a store, DIR gets the state and configuration of the node: the repositories are in the bucket.`,
		Example: `  packhorse backup /mnt/backup --config /etc/packhorse/serve.toml
  packhorse backup /mnt/backup --verify
  packhorse restore /mnt/backup --root /srv/git`,
		Args: exactArgs(1, "one DIR"),
	}
	t.addFlags(cmd.Flags(), "the server's state directory, `DIR` (default that of the last server on the root)")
	verify := cmd.Flags().Bool("verify", false, "read all files of the backup, and compare them with their checksums")
	allow := cmd.Flags().Bool("allow-removals", false,
		"remove repositories and state from the backup even if most are gone, or the root is another one")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		show, end := countProgress(cmd.ErrOrStderr())
		progress := func(done int64, what string) { show(done, 0, what) }
		if *verify {
			r, err := backup.Restore(cmd.Context(), backup.RestoreOptions{Dir: args[0], Progress: progress})
			end()
			return printBackup(cmd, *asJSON, r, err, "verified")
		}
		o, bucket, err := backupOptions(cmd.Context(), t)
		if err != nil {
			return err
		}
		o.Dir, o.Progress, o.AllowRemovals = args[0], progress, *allow
		r, err := backup.Run(cmd.Context(), o)
		end()
		if bucket != "" {
			fmt.Fprintf(cmd.ErrOrStderr(), "the repositories are in %s, and not in this backup: keep versions or a copy of the "+
				"bucket (docs/how-to/backup.md)\n", bucket)
		}
		return printBackup(cmd, *asJSON, r, err, "backed up")
	}
	return cmd
}

// backupOptions returns what a backup of a server has, and the URL of its store.
func backupOptions(ctx context.Context, t *target) (o backup.Options, bucket string, err error) {
	cfg, err := t.load()
	role := config.RoleServe
	if err == nil && cfg.Root == "" && cfg.State == "" {
		err = usage(errors.New("which server? name its configuration with --config FILE, or its repositories with " +
			"--root DIR"))
	}
	if err != nil {
		return o, "", err
	}
	if cfg.Root == "" && !cfg.Store.Enabled() {
		role = config.RoleGateway
	}
	file := t.config
	if file == "" {
		if _, file, err = runningConfig(cfg.State); err != nil {
			return o, "", fmt.Errorf("the configuration of the server: %w; name it with --config", err)
		}
		other := *t
		other.config = file
		if cfg, err = other.load(); err != nil {
			return o, "", err
		}
	}
	cfg.Complete(role, t.env.Getenv)
	if _, err := statedir.ReadFormat(cfg.State); err != nil {
		return o, "", err
	}
	o = backup.Options{State: cfg.State, Durable: statedir.Durable, Files: cfg.Files()}
	if file != "" {
		file, err = filepath.Abs(file)
		o.Files = append(o.Files, file)
	}
	if isCache, _ := store.IsCache(cfg.Root); isCache || cfg.Store.Enabled() {
		return o, cmp.Or(cfg.Store.URL, "a store"), err
	}
	o.Root = cfg.Root
	o.Repositories = func(skipped func(path, why string)) iter.Seq2[string, error] {
		return cfg.RepositoriesBelow(ctx, skipped)
	}
	return o, "", err
}

// printBackup prints the result of a backup or a restore.
func printBackup(cmd *cobra.Command, asJSON bool, r *backup.Report, err error, verb string) error {
	if err != nil {
		return err
	}
	slices.SortFunc(r.Problems, func(a, b backup.Problem) int { return strings.Compare(a.Path, b.Path) })
	err = printResult(cmd, asJSON, r, func(w io.Writer) error {
		for _, p := range r.Problems {
			fmt.Fprintln(w, cli.Printable(p.Path+": "+p.Text))
		}
		for _, path := range r.Removed {
			fmt.Fprintln(w, cli.Printable("removed: "+path))
		}
		for _, file := range r.LeftOut {
			why := "no such file"
			if verb == "restored" {
				why = "copy it to its place from " + filepath.Join(cmd.Flags().Arg(0), "files", file)
			}
			fmt.Fprintln(w, cli.Printable(fmt.Sprintf("left out: %s: %s", file, why)))
		}
		changed := ""
		if verb == "backed up" {
			changed = fmt.Sprintf(", %d of them changed", r.Changed)
		}
		_, err := fmt.Fprintf(w, "%s %d repositories%s (%s); state of %s\n", verb, r.Repositories, changed,
			humanize.IBytes(uint64(r.Bytes)), r.At.Local().Format(time.DateTime))
		return err
	})
	if err == nil && len(r.Problems) > 0 {
		err = fmt.Errorf("not everything was %s: %d problems", verb, len(r.Problems))
		if verb == "verified" {
			err = fmt.Errorf("%w: run packhorse backup again, which replaces damaged copies", err)
		}
	}
	return err
}

func restoreCommand(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "restore DIR",
		Short: "Restore repositories and state from a backup",
		Long: `Restore copies the repositories of a backup to the new directory --root, and the tokens, keys, rules and deliveries to the
state directory. Every file is compared with its checksum. Nothing is replaced: the root has to be empty.

The configuration, and files that it names outside of the state directory, are left in DIR/files: the command prints
where to copy them. Run it as the user of the server, or give it the files afterwards with chown.

With --repository only one repository is restored, below a root that a server may be using.`,
		Example: `  packhorse restore /mnt/backup --root /srv/git --state /var/lib/packhorse/serve
  packhorse restore /mnt/backup --root /srv/git --repository team/app`,
		Args: exactArgs(1, "one DIR"),
	}
	o := backup.RestoreOptions{}
	cmd.Flags().StringVar(&o.Root, "root", "", "restore the repositories to the new directory `DIR`")
	cmd.Flags().StringVar(&o.State, "state", "", "restore the state to `DIR` (default ROOT/.packhorse)")
	cmd.Flags().StringVar(&o.Repository, "repository", "", "restore only the repository `PATH`")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if o.Root == "" {
			return usage(errors.New("where to? name a new directory with --root DIR"))
		}
		show, end := countProgress(cmd.ErrOrStderr())
		o.Dir, o.Progress = args[0], func(done int64, what string) { show(done, 0, what) }
		o.State = cmp.Or(o.State, config.DefaultState(config.RoleServe, o.Root, env.Getenv))
		r, err := backup.Restore(cmd.Context(), o)
		end()
		return printBackup(cmd, *asJSON, r, err, "restored")
	}
	return cmd
}
