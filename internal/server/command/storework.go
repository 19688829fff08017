package command

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/store"
)

func storeCheck(f *storeFinder) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check [PATH...]",
		Short: "Check the records and objects of a store",
		Long: `Check reads the records of all repositories, or of those at the paths. It reports missing numbers, records that do not
follow the one before them, and packs or checkpoints that are missing or have another size. With --deep it reads all
objects and compares their checksums, but not their contents: run git fsck on a clone or an export for that.

Check changes nothing, and nodes may work meanwhile. It exits with 1 if there are problems.`,
		Example: `  packhorse store check --config /etc/packhorse/store.toml
  packhorse store check --deep team/app --store s3://git-prod/packhorse`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	o := store.CheckOptions{}
	cmd.Flags().BoolVar(&o.Deep, "deep", false, "read all objects, and compare their checksums")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for _, arg := range args {
			if strings.HasPrefix(arg, "s3://") {
				return usage(fmt.Errorf("%s is not the path of a repository: name the store with --store", arg))
			}
			path, err := git.ParseRepoPath(arg)
			if err != nil {
				return usage(err)
			}
			o.Paths = append(o.Paths, path)
		}
		b, _, err := f.open()
		if err != nil {
			return err
		}
		show, end := countProgress(cmd.ErrOrStderr())
		o.Progress = show
		report, err := store.Check(cmd.Context(), b, o)
		end()
		if err != nil {
			return err
		}
		err = printResult(cmd, *asJSON, report, func(w io.Writer) error {
			writeProblems(w, report.Problems)
			_, err := fmt.Fprintf(w, "checked %d repositories, %d records and %d objects (%s): %d problems\n"+
				"no head names %d other objects (%s)\n", report.Repositories, report.Records, report.Objects,
				humanize.IBytes(uint64(report.Bytes)), len(report.Problems), report.Unnamed,
				humanize.IBytes(uint64(report.UnnamedBytes)))
			return err
		})
		if err == nil && len(report.Problems) > 0 {
			err = errProblems
		}
		return err
	}
	return cmd
}

func writeProblems(w io.Writer, problems []store.Problem) {
	for _, p := range problems {
		subject := p.Path
		if p.Key != "" {
			subject += ": " + p.Key
		}
		fmt.Fprintf(w, "%s: %s\n", subject, p.Text)
		if p.Remedy != "" {
			fmt.Fprintf(w, "  %s\n", p.Remedy)
		}
	}
}

func storeImport(f *storeFinder) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import DIR",
		Short: "Copy the repositories below a directory into a store",
		Long: `Import copies all bare repositories below DIR into the store, under their paths. Packs are copied as they are, and loose
objects are packed. The repositories below DIR are not changed. Paths that exist in the store are skipped, so import can be
repeated after an error.

Repositories with alternates, shallow repositories and partial clones are refused by name, and so are working copies,
hidden ones, symbolic links, and those with hooks: a store has none. DIR should not be pushed to meanwhile: stop the
server, or set push.enabled = false.`,
		Example: `  packhorse store import /srv/git --dry-run --store s3://git-prod/packhorse
  packhorse store import /srv/git --config /etc/packhorse/store.toml`,
		Args: exactArgs(1, "one DIR"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
	}
	o := store.ImportOptions{}
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "only report which repositories would be imported")
	cmd.Flags().BoolVar(&o.NoHooks, "ignore-hooks", false, "import repositories with hooks, without the hooks")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		b, s, err := f.open()
		if err != nil {
			return err
		}
		show, end := countProgress(cmd.ErrOrStderr())
		o.Dir, o.Node, o.Progress = args[0], s.NodeName(), show
		report, err := store.ImportAll(cmd.Context(), b, o)
		end()
		if err != nil {
			return err
		}
		err = printResult(cmd, *asJSON, report, func(w io.Writer) error { return writeImport(w, report, o.DryRun) })
		if err == nil && len(report.Refused) > 0 {
			err = errors.New("some repositories were not imported")
		}
		return err
	}
	return cmd
}

func writeImport(w io.Writer, r *store.ImportReport, dryRun bool) error {
	verb := "imported"
	if dryRun {
		verb = "would import"
	}
	for _, path := range r.Imported {
		fmt.Fprintf(w, "%s %s\n", verb, path)
	}
	for _, path := range r.Exists {
		difference := ""
		if slices.Contains(r.Differs, path) {
			difference = ", with other refs"
		}
		fmt.Fprintf(w, "skipped %s: it is in the store%s\n", path, difference)
	}
	writeProblems(w, r.Refused)
	_, err := fmt.Fprintf(w, "%s %d repositories (%s), skipped %d, refused %d\n", verb, len(r.Imported),
		humanize.IBytes(uint64(r.Bytes)), len(r.Exists), len(r.Refused))
	return err
}

func storeGC(f *storeFinder) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Delete packs and checkpoints that no repository uses any more",
		Long: `Gc deletes packs and checkpoints that the heads of their repositories do not name and that are older than --older-than. A
record condemns the keys before they are deleted, so a push that still needs one uploads it again. Records are not deleted.

The nodes do the same once a week, with 7d. They may work meanwhile. To go back to a moment in the past you need the
packs of that moment, so choose --older-than accordingly.`,
		Example: `  packhorse store gc --older-than 7d --dry-run --config /etc/packhorse/store.toml
  packhorse store gc --older-than 7d --config /etc/packhorse/store.toml`,
		Args: noArgs,
	}
	o := store.GCOptions{}
	age := cmd.Flags().String("older-than", "7d", "delete what is older than `DURATION`, as in 7d or 12h")
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "only report what would be deleted")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		b, s, err := f.open()
		if err != nil {
			return err
		}
		if o.OlderThan, err = parsePeriod(*age); err != nil {
			return usage(fmt.Errorf("--older-than: %w", err))
		}
		show, end := countProgress(cmd.ErrOrStderr())
		o.Node, o.Progress = s.NodeName(), show
		report, err := store.CollectGarbage(cmd.Context(), b, o)
		end()
		if err != nil {
			return err
		}
		verb := "deleted"
		if o.DryRun {
			if verb = "would delete"; !*asJSON {
				for _, key := range report.Keys {
					fmt.Fprintln(cmd.OutOrStdout(), key)
				}
			}
		}
		return printLine(cmd, *asJSON, report, "%s %d objects of %d repositories, %s", verb, report.Objects,
			report.Repositories, humanize.IBytes(uint64(report.Bytes)))
	}
	return cmd
}

func storePromote(f *storeFinder) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "promote",
		Short: "Make a copy of a store a store of its own",
		Long: `Promote gives a store another ID. It is for a copy of a bucket, for example in another region or from a backup, that shall
be used from now on. Nodes of the former store refuse the copy, and its own nodes refuse the former store, so two states
of one repository cannot be mixed. Nodes need an empty root.

A copy can lack objects. Repositories then lose the records that are not complete, which promote reports.

First make sure that no node uses the former store any more, and none the copy. Pushes that the copy does not have are
lost. Promote asks for confirmation, unless --yes is given.`,
		Example: `  packhorse store promote --dry-run --store s3://git-dr/packhorse --region eu-west-1
  packhorse store promote --store s3://git-dr/packhorse --region eu-west-1`,
		Args: noArgs,
	}
	asJSON := jsonFlag(cmd)
	yes := cmd.Flags().Bool("yes", false, "do not ask")
	o := store.PromoteOptions{}
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "only report which records would be dropped")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		b, s, err := f.open()
		if err != nil {
			return err
		}
		if !*yes && !o.DryRun && !confirm(cmd, fmt.Sprintf("Give the store %s another ID? Enter its URL", s.URL), s.URL) {
			return errors.New("the store was not promoted; --yes promotes it without a question")
		}
		report, err := store.Promote(cmd.Context(), b, o)
		if err != nil {
			return err
		}
		return printResult(cmd, *asJSON, report, func(w io.Writer) error {
			writeProblems(w, report.Dropped)
			text := fmt.Sprintf("%s is a store of its own now, with ID %s", s.URL, report.ID)
			if o.DryRun {
				text = fmt.Sprintf("would give %s another ID, and drop records of %d repositories", s.URL, len(report.Dropped))
			}
			_, err := fmt.Fprintln(w, text)
			return err
		})
	}
	return cmd
}

func repoExport(env Env) *cobra.Command {
	f := &storeFinder{env: env}
	cmd := &cobra.Command{
		Use:   "export PATH DIR",
		Short: "Write a repository of a store as a plain bare repository",
		Long: `Export writes a repository of a store to the new directory DIR as a plain bare repository, which git and a server without a
store can use. It reads the bucket directly and verifies all files. The repository in the store is not changed.

With --root and neither --store nor --config, the store is that of the node with this root. Without a store, a repository is
a plain bare repository already: copy its directory, or use git clone --mirror.`,
		Example: `  packhorse repo export team/app /srv/git/team/app.git --config /etc/packhorse/store.toml
  packhorse repo export team/app app.git --store s3://git-prod/packhorse`,
		Args: exactArgs(2, "a PATH and a DIR"),
	}
	f.addFlags(cmd)
	cmd.Flags().StringVar(&f.root, "root", "", "use the store of the node whose root is `DIR`")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path, err := git.ParseRepoPath(args[0])
		if err != nil {
			return usage(err)
		}
		dir, err := filepath.Abs(args[1])
		if err != nil {
			return err
		}
		b, _, err := f.open()
		if f.root != "" && fault.Is(err, fault.NotFound) {
			return usage(fmt.Errorf("%w, so its repositories are plain bare ones already: copy the directory of %s, or use git "+
				"clone --mirror", err, path))
		}
		if err != nil {
			return err
		}
		show, end := countProgress(cmd.ErrOrStderr())
		err = store.Export(cmd.Context(), b, path, dir, show)
		end()
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "exported %s to %s\n", path, args[1])
		return err
	}
	return cmd
}

func storeForget(f *storeFinder) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "forget NAME",
		Short: "Remove the records of removed repositories with a name",
		Long: `Forget removes refs, settings and names from all records of removed repositories with NAME, and the records of the name.
Old versions in the bucket go, too. Empty records stay, so that nodes that were away find that the repositories are gone.
It also deletes packs and objects of Git LFS, except packs that forks borrow.

It is refused if a repository has the name, and for a day after the last one was removed. It prints the remaining data.`,
		Example: "  packhorse store forget team/secret --config /etc/packhorse/store.toml",
		Args:    exactArgs(1, "one NAME"),
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path, err := git.ParseRepoPath(args[0])
		if err != nil {
			return usage(err)
		}
		b, s, err := f.open()
		if err != nil {
			return err
		}
		done, err := store.Forget(cmd.Context(), b, path, s.NodeName())
		if err != nil {
			return err
		}
		return printResult(cmd, *asJSON, done, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "forgot %d repositories: %d records and %d objects; left: %s\n", done.Repositories,
				done.Records, done.Objects, strings.Join(done.Left, "; "))
			return err
		})
	}
	return cmd
}
