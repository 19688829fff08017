package command

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"connectrpc.com/connect"
	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/rest"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/operations/observe"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

func repoCommand(env Env) *cobra.Command {
	return group(&cobra.Command{
		Use:   "repo",
		Short: "Create, fork, import, list, describe, configure, maintain, rename, export and remove repositories",
		Long: `Repo manages the repositories below --root, or below the root of a configuration. It asks the running server over the
socket in its state directory; if none runs, it does the work itself. With --node it asks a storage node.`,
		Example: `  packhorse repo create team/app --root /srv/git
  packhorse repo import team/tool /mnt/old/tool.git --root /srv/git
  packhorse repo list team/ --node storage-1:9100 --secret-file /etc/packhorse/secret --tls-ca ca.pem`,
	}, repoCreate(env), repoFork(env), repoDetach(env), repoImport(env), repoList(env), repoInfo(env), repoSet(env),
		repoSetHead(env), repoMaintain(env), repoGC(env), repoPurge(env), repoRename(env), repoExport(env), repoRemove(env))
}

// repoCall is the work of a command with the node and its arguments.
type repoCall func(cmd *cobra.Command, node *client.Client, args []string) error

// Values of the argument changes.
const (
	reads   = false
	changes = true
)

// onRepository completes a command that asks a node. Its first argument, if it takes a PATH, is completed.
func onRepository(env Env, cmd *cobra.Command, changes bool, call repoCall) *cobra.Command {
	return onNode(&nodeFinder{target: target{env: env}}, cmd, changes, call)
}

// onNode is onRepository with a given finder.
func onNode(to *nodeFinder, cmd *cobra.Command, changes bool, call repoCall) *cobra.Command {
	to.addFlags(cmd.Flags(), true)
	with := to.read
	if changes {
		with = to.change
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return with(cmd.Context(), func(node *client.Client) error { return answerOf(call(cmd, node, args)) })
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) (names []string,
		_ cobra.ShellCompDirective) {
		if len(args) == 0 {
			_ = to.read(cmd.Context(), func(node *client.Client) error {
				page, err := node.Repositories().List(cmd.Context(), connect.NewRequest(&packhorsev1.ListRequest{Prefix: begun}))
				if err == nil {
					names = page.Msg.GetRepositories()
				}
				return err
			})
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	return cmd
}

// answerOf returns the error of a call without the code of Connect in front.
func answerOf(err error) error {
	if answer, ok := errors.AsType[*connect.Error](err); ok && answer.Message() != "" {
		return errors.New(answer.Message())
	}
	return err
}

// jsonFlag adds --json.
func jsonFlag(cmd *cobra.Command) *bool { return cmd.Flags().Bool("json", false, "print JSON") }

// printResult prints the result of a command: with --json as JSON, else with text. A message of the API is printed as a
// gateway sends it.
func printResult(cmd *cobra.Command, asJSON bool, result any, text func(io.Writer) error) error {
	if !asJSON {
		return text(cmd.OutOrStdout())
	}
	if m, ok := result.(proto.Message); ok {
		result = rest.NewObject(m, true)
	}
	return encodeJSON(cmd.OutOrStdout(), result)
}

// printLine is printResult with one line of text.
func printLine(cmd *cobra.Command, asJSON bool, result any, format string, args ...any) error {
	return printResult(cmd, asJSON, result, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, format+"\n", args...)
		return err
	})
}

// newTable returns a table with a header. The caller flushes it.
func newTable(w io.Writer, header string) *tabwriter.Writer {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if header != "" {
		fmt.Fprintln(table, header)
	}
	return table
}

func encodeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

func repoCreate(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "create PATH", Short: "Create an empty bare repository",
		Long: `Create creates an empty bare repository at PATH below the root, and the directories above it. The final ".git" of PATH is
optional. A repository that cannot be created completely is not created.`,
		Example: "  packhorse repo create team/app --root /srv/git\n  packhorse repo create team/app --default-branch " +
			"trunk --object-format sha256 --root /srv/git",
		Args: exactArgs(1, "one PATH"),
	}
	asJSON := jsonFlag(cmd)
	request := &packhorsev1.CreateRequest{Settings: &packhorsev1.Settings{}}
	description := cmd.Flags().String("description", "", "what the repository is for, as a `TEXT`")
	cmd.Flags().StringToStringVar(&request.Settings.Labels, "label", nil, "a label `KEY=VALUE`; can be repeated")
	cmd.Flags().StringVar(&request.ForkOf, "fork-of", "",
		"make a fork of the repository `SOURCE`, with its branch and format, see packhorse repo fork")
	cmd.Flags().StringVar(&request.DefaultBranch, "default-branch", "main", "the `BRANCH` that HEAD names")
	cmd.Flags().StringVar(&request.ObjectFormat, "object-format", "sha1", "`FORMAT`: sha1 or sha256")
	onRepository(env, cmd, changes, func(cmd *cobra.Command, node *client.Client, args []string) error {
		request.Repository = args[0]
		if request.ForkOf != "" {
			request.DefaultBranch, request.ObjectFormat = "", ""
		}
		if *description != "" {
			request.Settings.Description = description
		}
		made, err := node.Repositories().Create(cmd.Context(), connect.NewRequest(request))
		if err != nil {
			return err
		}
		r := made.Msg.GetRepository()
		return printLine(cmd, *asJSON, r, "created %s", r.GetPath())
	})
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return cmd
}

func repoFork(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "fork SOURCE TARGET", Short: "Create a repository that shares objects with another one",
		Long: `Fork creates the repository TARGET with the refs, HEAD and objects of SOURCE, but without its settings and hooks.
It has the LFS objects that its refs name, except in a store. Both share the disk space of their objects, so a fork costs a few small files, whatever the size of SOURCE.
Otherwise they are independent: either can be removed, and clients of one see only what its own refs reach.`,
		Example: `  packhorse repo fork team/app users/ann/app --root /srv/git
  packhorse repo fork team/app agents/17 --ref refs/heads/main --root /srv/git`,
		Args: exactArgs(2, "a SOURCE and a TARGET"),
	}
	asJSON := jsonFlag(cmd)
	refs := cmd.Flags().StringArray("ref", nil,
		"only this `REF`, or with a slash at the end all refs below it; can be repeated")
	lifetime := cmd.Flags().String("lifetime", "0", "remove the fork after this `DURATION`, as in 2d or 12h; 0: never")
	return onRepository(env, cmd, changes, func(cmd *cobra.Command, node *client.Client, args []string) error {
		request := &packhorsev1.ForkRequest{Repository: args[0], Target: args[1], Refs: *refs}
		if *lifetime != "0" {
			period, err := parsePeriod(*lifetime)
			if err != nil {
				return usage(fmt.Errorf("--lifetime: %w", err))
			}
			request.Lifetime = durationpb.New(period)
		}
		made, err := node.Repositories().Fork(cmd.Context(), connect.NewRequest(request))
		if err != nil {
			return err
		}
		r := made.Msg.GetRepository()
		return printLine(cmd, *asJSON, r, "created %s, a fork of %s: %d refs", r.GetPath(), args[0], r.GetRefs())
	})
}

func repoDetach(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "detach PATH", Short: "Give a fork its own copy of all its objects",
		Long: `Detach copies the objects that a repository shares with its forks into the repository, so that its directory is complete
by itself. A repository that has forks can be detached, too; the forks are unchanged.`,
		Example: "  packhorse repo detach users/ann/app --root /srv/git",
		Args:    exactArgs(1, "one PATH"),
	}
	return onRepository(env, cmd, changes, func(cmd *cobra.Command, node *client.Client, args []string) error {
		request := connect.NewRequest(&packhorsev1.DetachRequest{Repository: args[0]})
		if _, err := node.Repositories().Detach(cmd.Context(), request); err != nil {
			return err
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s has its own copy of all its objects\n", args[0])
		return err
	})
}

func repoList(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list [PREFIX]", Short: "List repositories",
		Long: `List prints the paths of the repositories, those that begin with PREFIX, in order. --long adds the size of the packs, the
number of refs, the time of the last push, when a fork is removed, the owner, the labels and the description. --label selects repositories that
have a label, with any value or with one.`,
		Example: `  packhorse repo list --root /srv/git
  packhorse repo list team/ --json --config /etc/packhorse.toml
  packhorse repo list --long --label team=web --label tier --root /srv/git`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("%s takes one PREFIX, got %d arguments", cmd.CommandPath(), len(args))
			}
			return nil
		},
	}
	asJSON := jsonFlag(cmd)
	long := cmd.Flags().Bool("long", false, "print details of the repositories")
	labels := cmd.Flags().StringArray("label", nil, "only repositories with the label `KEY[=VALUE]`; can be repeated")
	return onRepository(env, cmd, reads, func(cmd *cobra.Command, node *client.Client, args []string) error {
		request := &packhorsev1.ListRequest{PageSize: places.MaxPage, Labels: *labels}
		if len(args) > 0 {
			request.Prefix = args[0]
		}
		if *long {
			return listLong(cmd, node, request, *asJSON)
		}
		all := []string{}
		for path, err := range node.AllRepositories(cmd.Context(), request) {
			if err != nil {
				return err
			}
			all = append(all, path)
		}
		return printResult(cmd, *asJSON, all, func(w io.Writer) error {
			for _, path := range all {
				fmt.Fprintln(w, path)
			}
			return nil
		})
	})
}

// listLong prints the repositories of a request with details.
func listLong(cmd *cobra.Command, node *client.Client, request *packhorsev1.ListRequest, asJSON bool) error {
	page := &packhorsev1.ListResponse{}
	for r, err := range node.DescribeRepositories(cmd.Context(), request) {
		if err != nil {
			return err
		}
		page.Repositories, page.Details = append(page.Repositories, r.GetPath()), append(page.Details, r)
	}
	return printResult(cmd, asJSON, page, func(w io.Writer) error {
		table := newTable(w, "PATH\tSIZE\tREFS\tPUSHED\tEXPIRES\tOWNER\tLABELS\tDESCRIPTION")
		for _, r := range page.Details {
			if r.GetObjectFormat() == "" {
				fmt.Fprintf(table, "%s\t(cannot be read)\n", r.GetPath())
				continue
			}
			s := r.GetSettings()
			var labels []string
			for _, key := range slices.Sorted(maps.Keys(s.GetLabels())) {
				labels = append(labels, key+"="+s.GetLabels()[key])
			}
			fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", r.GetPath(), humanize.IBytes(uint64(r.GetSize())),
				r.GetRefs(), localTime(r.GetPushedAt()), localTime(r.GetExpires()), oneLine(s.GetOwner()),
				oneLine(strings.Join(labels, ",")), oneLine(s.GetDescription()))
		}
		return table.Flush()
	})
}

// localTime returns a time for a table: "-" if it is not set.
func localTime(at *timestamppb.Timestamp) string {
	if at == nil {
		return "-"
	}
	return at.AsTime().Local().Format(time.DateTime)
}

// oneLine returns a text for a table: "-" if it is empty.
func oneLine(text string) string {
	return cmp.Or(strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)), " "), "-")
}

func repoInfo(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "info PATH", Short: "Describe a repository",
		Long: `Info shows the object format, HEAD, refs, size, packs, indexes and hooks of a repository, and the configuration that affects
how it is served.`,
		Example: "  packhorse repo info team/app --root /srv/git\n  packhorse repo info team/app --json --config " +
			"/etc/packhorse.toml",
		Args: exactArgs(1, "one PATH"),
	}
	asJSON := jsonFlag(cmd)
	return onRepository(env, cmd, reads, func(cmd *cobra.Command, node *client.Client, args []string) error {
		found, err := node.Repositories().Get(cmd.Context(), connect.NewRequest(&packhorsev1.GetRequest{Repository: args[0]}))
		if err != nil {
			return err
		}
		r := found.Msg.GetRepository()
		return printResult(cmd, *asJSON, r, func(w io.Writer) error { return writeInfo(w, r) })
	})
}

func writeInfo(w io.Writer, r *packhorsev1.Repository) error {
	table := newTable(w, "")
	line := func(name, format string, args ...any) {
		fmt.Fprintf(table, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	o := r.GetObjects()
	line("path", "%s", r.GetPath())
	line("object format", "%s", r.GetObjectFormat())
	switch {
	case r.GetHeadOid() == "":
		line("HEAD", "%s (unborn)", r.GetHead())
	case r.GetHead() == "":
		line("HEAD", "%s (detached)", r.GetHeadOid())
	default:
		line("HEAD", "%s %s", r.GetHead(), r.GetHeadOid())
	}
	line("refs", "%d", r.GetRefs())
	if at := r.GetExpires(); at != nil {
		line("expires", "%s", localTime(at))
	}
	if r.GetSize() >= 0 {
		line("size", "%s", humanize.IBytes(uint64(r.GetSize())))
	}
	line("objects", "%d in %d packs (%s), %d loose", o.GetPacked(), o.GetPacks(),
		humanize.IBytes(uint64(o.GetPackBytes())), o.GetLoose())
	var has []string
	for _, index := range []struct {
		name   string
		exists bool
	}{{"bitmap", o.GetBitmap()}, {"commit-graph", o.GetCommitGraph()}, {"multi-pack-index", o.GetMultiPackIndex()}} {
		if index.exists {
			has = append(has, index.name)
		}
	}
	line("has", "%s", cmp.Or(strings.Join(has, ", "), "no multi-pack-index, bitmap or commit-graph"))
	if hooks := r.GetHooks(); len(hooks) > 0 {
		use := map[string]string{"refuse": "pushes are refused", "run": "run on pushes",
			"ignore": "not run"}[r.GetRepositoryHooks()]
		if use == "" {
			use = "pushes are off"
		}
		line("hooks", "%s (%s)", strings.Join(hooks, ", "), use)
	}
	writeSettings(line, r.GetSettings())
	for _, key := range slices.Sorted(maps.Keys(r.GetConfig())) {
		line(key, "%s", strings.ReplaceAll(r.GetConfig()[key], "\n", ", "))
	}
	return table.Flush()
}

func repoSetHead(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "set-head PATH BRANCH", Short: "Set the default branch of a repository",
		Long: `Set-head sets the default branch of a repository: clones check it out, and it is searched. The branch need not exist yet;
if it does not, the command prints a warning. The change is durable when the command exits.`,
		Example: "  packhorse repo set-head team/app trunk --root /srv/git",
		Args:    exactArgs(2, "a PATH and a BRANCH"),
	}
	return onRepository(env, cmd, changes, func(cmd *cobra.Command, node *client.Client, args []string) error {
		branch := args[1]
		if !strings.HasPrefix(branch, "refs/") {
			branch = "refs/heads/" + branch
		}
		set, err := node.Repositories().SetHead(cmd.Context(),
			connect.NewRequest(&packhorsev1.SetHeadRequest{Repository: args[0], Branch: branch}))
		if err != nil {
			return err
		}
		if !set.Msg.GetExists() {
			fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s does not exist in %s yet; until it does, clones check out nothing\n",
				branch, args[0])
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "HEAD of %s is %s\n", args[0], branch)
		return err
	})
}

func repoMaintain(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "maintain PATH", Short: "Repack a repository, write its indexes and pack its refs",
		Long: `Maintain repacks a repository geometrically, writes a multi-pack-index with a bitmap and a commit-graph, packs the refs,
and makes a tip pack, from which shallow clones are copied. Fetches and pushes continue meanwhile, and no object is
removed. A server does the same after pushes when it is due (see [maintenance] in the configuration).`,
		Example: "  packhorse repo maintain team/app --root /srv/git",
		Args:    exactArgs(1, "one PATH"),
	}
	asJSON := jsonFlag(cmd)
	return onRepository(env, cmd, changes, func(cmd *cobra.Command, node *client.Client, args []string) error {
		request := connect.NewRequest(&packhorsev1.MaintainRequest{Repository: args[0]})
		done, err := node.Repositories().Maintain(cmd.Context(), request)
		if err != nil {
			return err
		}
		before, after := done.Msg.GetBefore(), done.Msg.GetAfter()
		return printLine(cmd, *asJSON, done.Msg, "%s: %d packs and %d loose objects, before %d and %d; %s", args[0],
			after.GetPacks(), after.GetLoose(), before.GetPacks(), before.GetLoose(),
			done.Msg.GetDuration().AsDuration().Round(time.Millisecond))
	})
}

func repoGC(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "gc PATH", Short: "Remove unreachable objects of a repository",
		Long: `Gc removes the objects that no ref, reflog or index of a work tree reaches and that are older than --older-than, and
maintains the repository. Fetches and pushes continue meanwhile. It needs git 2.37 or newer, and the time and space of a
complete repack, also with --dry-run.

Repositories that share objects, as forks, are collected together, and all of them are printed. In a store, the age is
that of the pack of an object, forks are collected one by one, and the former packs stay in the bucket for seven days.`,
		Example: "  packhorse repo gc team/app --root /srv/git\n  packhorse repo gc team/app --older-than 30d --dry-run " +
			"--root /srv/git",
		Args: exactArgs(1, "one PATH"),
	}
	asJSON := jsonFlag(cmd)
	age := cmd.Flags().String("older-than", "14d", "remove objects that are older than `DURATION`, as in 14d or 12h")
	dry := cmd.Flags().Bool("dry-run", false, "change nothing, and print the result")
	return onRepository(env, cmd, changes, func(cmd *cobra.Command, node *client.Client, args []string) error {
		older, err := parsePeriod(*age)
		if err != nil {
			return usage(fmt.Errorf("--older-than: %w", err))
		}
		done, err := node.Repositories().Collect(cmd.Context(), connect.NewRequest(&packhorsev1.CollectRequest{
			Repository: args[0], OlderThan: durationpb.New(older), DryRun: *dry}))
		if err != nil {
			return err
		}
		before, after := done.Msg.GetBefore(), done.Msg.GetAfter()
		verb := "has"
		if *dry {
			verb = "would have"
		}
		subject := args[0]
		if members := done.Msg.GetMembers(); len(members) > 0 {
			subject = "network of " + strings.Join(members, ", ")
		}
		return printLine(cmd, *asJSON, done.Msg, "%s: %s %d objects, before %d; %d bytes freed; %s", subject, verb,
			after.GetPacked()+after.GetLoose(), before.GetPacked()+before.GetLoose(), done.Msg.GetFreedBytes(),
			done.Msg.GetDuration().AsDuration().Round(time.Millisecond))
	})
}

func repoRename(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "rename PATH NEW-PATH", Short: "Rename a repository",
		Long: `Rename gives a repository another path, with its settings, LFS objects and forks. All nodes use the new path from the next
request on, and the former path does not exist any more. Running pushes end before; fetches can fail.

Rules, tokens and webhooks are not changed. Those of the server that name the former path and not the new one are
printed. Mirrors cannot be renamed, nor, without a store, repositories with work trees, and those whose objects others
borrow by their path.`,
		Example: "  packhorse repo rename team/app team/service --root /srv/git",
		Args:    exactArgs(2, "a PATH and a NEW-PATH"),
	}
	asJSON := jsonFlag(cmd)
	return onRepository(env, cmd, changes, func(cmd *cobra.Command, node *client.Client, args []string) error {
		request := &packhorsev1.RenameRequest{Repository: args[0], To: args[1]}
		done, err := node.Repositories().Rename(cmd.Context(), connect.NewRequest(request))
		if err != nil {
			return err
		}
		return printResult(cmd, *asJSON, done.Msg, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "renamed %s to %s\n", args[0], args[1])
			for _, text := range done.Msg.GetMentions() {
				_, err = fmt.Fprintf(w, "it names the former path: %s\n", text)
			}
			return err
		})
	})
}

func repoRemove(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "remove PATH", Short: "Remove a repository",
		Long: `Remove deletes a bare repository. It asks for confirmation, unless --yes is given. Without a store its files are deleted
at once. In a store its objects are deleted after seven days, and it can be restored until then.

Without a store, remove refuses repositories with linked worktrees or extensions.preciousObjects. It also refuses
repositories whose objects other repositories below the root borrow (objects/info/alternates); --force removes these.
It waits up to ten seconds for running pushes, and is refused while a longer one runs.`,
		Example: "  packhorse repo remove team/old --yes --root /srv/git",
		Args:    exactArgs(1, "one PATH"),
	}
	yes := cmd.Flags().Bool("yes", false, "do not ask")
	force := cmd.Flags().Bool("force", false, "remove it even if that damages repositories that borrow its objects")
	return onRepository(env, cmd, changes, func(cmd *cobra.Command, node *client.Client, args []string) error {
		found, err := node.Repositories().Get(cmd.Context(), connect.NewRequest(&packhorsev1.GetRequest{Repository: args[0]}))
		if err != nil && !*yes { // with --yes, remove even a damaged repository
			return err
		}
		request := &packhorsev1.DeleteRequest{Repository: args[0], Force: *force}
		if err == nil {
			request.Incarnation = found.Msg.GetRepository().GetVersion().GetIncarnation()
		}
		if !*yes {
			r := found.Msg.GetRepository()
			question := fmt.Sprintf("Remove %s, %d refs? Enter its path", r.GetPath(), r.GetRefs())
			if !confirm(cmd, question, args[0], r.GetPath()) {
				return errors.New("the repository was not removed; --yes removes it without a question")
			}
		}
		if _, err := node.Repositories().Delete(cmd.Context(), connect.NewRequest(request)); err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "removed %s\n", args[0])
		return err
	})
}

// confirm asks a question, and reports whether the answer is one of those wanted.
func confirm(cmd *cobra.Command, question string, wanted ...string) bool {
	fmt.Fprintf(cmd.OutOrStderr(), "%s to confirm: ", question)
	said, _ := bufio.NewReader(io.LimitReader(cmd.InOrStdin(), 8<<10)).ReadString('\n')
	return slices.Contains(wanted, strings.TrimSpace(said))
}

func repoImport(env Env) *cobra.Command {
	to := &nodeFinder{target: target{env: env}}
	cmd := &cobra.Command{
		Use: "import PATH SOURCE", Short: "Copy a repository from another place",
		Long: `Import copies all refs and objects of SOURCE to a new bare repository at PATH below the root. SOURCE is the path of a
repository or a bundle, or a URL (https://, http://, ssh://). The new repository appears when it is complete, packed and
with its indexes, whether a server runs or not. Objects that git fsck refuses are refused. If SOURCE needs a password,
clone it with git clone --mirror first.`,
		Example: `  packhorse repo import team/tool /mnt/old/tool.git --root /srv/git
  packhorse repo import team/tool tool.bundle --root /srv/git
  packhorse repo import mirrors/git https://git.example/git.git --root /srv/git`,
		Args: exactArgs(2, "a PATH and a SOURCE"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
	}
	to.addFlags(cmd.Flags(), false)
	asJSON := jsonFlag(cmd)
	unchecked := cmd.Flags().Bool("no-fsck", false,
		"accept objects that git fsck refuses, which old repositories may have")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path, err := git.ParseRepoPath(args[0])
		if err != nil {
			return usage(err)
		}
		source := sourceOf(args[1])
		from := places.ImportOptions{Source: source, Check: !*unchecked, Environ: sshEnviron(env)}
		if errs := cmd.ErrOrStderr(); observe.IsTerminal(errs) {
			from.Progress = func(text []byte) { _, _ = errs.Write(text) }
		}
		var made storage.Description
		err = to.importing(cmd.Context(), func(node *storage.Node) error {
			err := readable(source)
			if err == nil {
				made, err = node.Import(cmd.Context(), path, from)
			}
			return err
		})
		if fault.Is(err, fault.Invalid) {
			return usage(err)
		} else if err != nil {
			return err
		}
		result := map[string]any{
			"path": made.Path, "object_format": made.Format.String(), "head": made.Head.Target, "refs": made.Refs,
			"size": made.Size, "objects": made.Objects.Packed,
		}
		return printLine(cmd, *asJSON, result, "imported %s: %d refs, %d objects, %s", made.Path, made.Refs,
			made.Objects.Packed, humanize.IBytes(uint64(made.Size)))
	}
	return cmd
}

// sourceOf makes the path of an existing file absolute. A source with a scheme is a URL.
func sourceOf(source string) string {
	if strings.Contains(source, "://") {
		return source
	}
	if _, err := os.Stat(source); err != nil && !filepath.IsAbs(source) {
		return source // refused later, unless it is a URL
	}
	abs, err := filepath.Abs(source)
	if err != nil {
		return source
	}
	return abs
}

// readable returns an error if the user of the repositories, to which a command of root switches, cannot read a file.
func readable(source string) error {
	if !filepath.IsAbs(source) || !errors.Is(unix.Access(source, unix.R_OK), fs.ErrPermission) {
		return nil
	}
	return fmt.Errorf("%s: the owner of the repositories, %s, cannot read it: copy it to a directory that this user "+
		"can read", source,
		statedir.Self().Name())
}

// sshEnviron returns the variables that ssh needs. BatchMode keeps it from asking questions.
func sshEnviron(env Env) []string {
	environ := []string{"GIT_SSH_COMMAND=ssh -o BatchMode=yes"}
	for _, name := range []string{"HOME", "SSH_AUTH_SOCK", "USER"} {
		if value := env.Getenv(name); value != "" {
			environ = append(environ, name+"="+value)
		}
	}
	return environ
}
