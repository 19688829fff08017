package command

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/server/config"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

func repoSet(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "set PATH", Short: "Change settings of a repository",
		Long: `Set changes the given settings of a repository, all or none of them, and leaves the others. They apply to all requests
that begin later, on every node of a store. --remove removes settings: description, owner, category, quota_bytes,
lfs_quota_bytes, max_push_bytes, read_only, archived, unlisted, hidden_refs, labels, or one label as labels/KEY.`,
		Example: `  packhorse repo set team/app --description 'The app' --label team=web --quota 10GiB --root /srv/git
  packhorse repo set team/app --read-only --root /srv/git
  packhorse repo set team/app --read-only=false --remove hidden_refs,labels/team --root /srv/git`,
		Args: exactArgs(1, "one PATH"),
	}
	asJSON := jsonFlag(cmd)
	s, flags := &packhorsev1.Settings{}, cmd.Flags()
	flags.Var(optional[string]{&s.Description, asText}, "description", "what the repository is for, as a `TEXT`")
	flags.Var(optional[string]{&s.Owner, asText}, "owner", "the owner, as a `TEXT`")
	flags.Var(optional[string]{&s.Category, asText}, "category", "the category on pages, as a `TEXT`")
	flags.Var(optional[bool]{&s.Unlisted, strconv.ParseBool}, "unlisted", "leave it out of the list on pages")
	flags.Var(optional[int64]{&s.QuotaBytes, asSize}, "quota", "maximum `SIZE` of all packs; 0: no limit")
	flags.Var(optional[int64]{&s.LfsQuotaBytes, asSize}, "lfs-quota", "maximum `SIZE` of all LFS objects; 0: no limit")
	flags.Var(optional[int64]{&s.MaxPushBytes, asSize}, "max-push", "maximum `SIZE` of the pack of a push; 0: the server's")
	flags.Var(optional[bool]{&s.ReadOnly, strconv.ParseBool}, "read-only", "refuse pushes")
	flags.Var(optional[bool]{&s.Archived, strconv.ParseBool}, "archived", "refuse pushes, and say that it is archived")
	for _, name := range []string{"read-only", "archived", "unlisted"} {
		flags.Lookup(name).NoOptDefVal = "true"
	}
	flags.StringArrayVar(&s.HiddenRefs, "hide", nil,
		"hide this `REF` and those below it from clients, instead of those hidden before; can be repeated")
	flags.StringToStringVar(&s.Labels, "label", nil, "set a label, `KEY=VALUE`; can be repeated")
	remove := flags.StringSlice("remove", nil, "remove `SETTINGS`, separated by commas")
	return onRepository(env, cmd, changes, func(cmd *cobra.Command, node *client.Client, args []string) error {
		if len(*remove) == 0 && proto.Equal(s, &packhorsev1.Settings{}) {
			return usage(errors.New("want a setting to change, such as --description, or --remove"))
		}
		request := &packhorsev1.ConfigureRequest{Repository: args[0], Settings: s, Remove: *remove}
		done, err := node.Repositories().Configure(cmd.Context(), connect.NewRequest(request))
		if err != nil {
			return err
		}
		return printLine(cmd, *asJSON, done.Msg.GetRepository(), "changed the settings of %s", args[0])
	})
}

// optional is a flag for a field that has no value unless the flag is given.
type optional[T any] struct {
	to    **T
	parse func(string) (T, error)
}

// Set implements pflag.Value.
func (o optional[T]) Set(text string) error {
	value, err := o.parse(text)
	*o.to = &value
	return err
}

// String implements pflag.Value.
func (o optional[T]) String() string {
	if o.to == nil || *o.to == nil {
		return ""
	}
	return fmt.Sprint(**o.to)
}

// Type implements pflag.Value. A flag of type bool needs no value.
func (o optional[T]) Type() string { return fmt.Sprintf("%T", *new(T)) }

func asText(text string) (string, error) { return text, nil }

func asSize(text string) (int64, error) {
	var size config.Size
	err := size.UnmarshalText([]byte(text))
	return int64(size), err
}

// writeSettings prints the settings that have a value.
func writeSettings(line func(name, format string, args ...any), s *packhorsev1.Settings) {
	if s == nil { // of an older node
		return
	}
	text := func(name string, value *string) {
		if value != nil {
			line(name, "%s", strings.ReplaceAll(*value, "\n", " "))
		}
	}
	size := func(name string, value *int64) {
		if value != nil {
			line(name, "%s", humanize.IBytes(uint64(*value)))
		}
	}
	text("description", s.Description)
	text("owner", s.Owner)
	text("category", s.Category)
	size("quota", s.QuotaBytes)
	size("LFS quota", s.LfsQuotaBytes)
	size("max push", s.MaxPushBytes)
	switch {
	case s.GetArchived():
		line("state", "archived")
	case s.GetReadOnly():
		line("state", "read-only")
	}
	if hidden := s.GetHiddenRefs(); len(hidden) > 0 {
		line("hidden refs", "%s", strings.Join(hidden, ", "))
	}
	for _, key := range slices.Sorted(maps.Keys(s.GetLabels())) {
		line("label "+key, "%s", s.GetLabels()[key])
	}
}
