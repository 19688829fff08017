package receivepack

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// DefaultFsck are the checks that pushes do not have to pass, in the form of Options.Fsck. Their violations are common in old histories and harm
// nobody; Gitaly relaxes the same ones.
func DefaultFsck() map[string]string {
	return map[string]string{"badTimezone": "ignore", "missingSpaceBeforeDate": "ignore", "zeroPaddedFilemode": "ignore"}
}

// fsckChecks are the checks of objects that git has (gitformat: git-fsck(1), "FSCK MESSAGES").
var fsckChecks = strings.Fields(`
	badDate badDateOverflow badEmail badFilemode badGpgsig badHeaderContinuation badName badObjectSha1 badParentSha1 badTagName badTimezone badTree
	badTreeSha1 badType duplicateEntries emptyName extraHeaderEntry fullPathname gitattributesBlob gitattributesLarge gitattributesLineLength
	gitattributesMissing gitattributesSymlink gitignoreSymlink gitmodulesBlob gitmodulesLarge gitmodulesMissing gitmodulesName gitmodulesParse
	gitmodulesPath gitmodulesSymlink gitmodulesUpdate gitmodulesUrl hasDot hasDotdot hasDotgit largePathname mailmapSymlink missingAuthor
	missingCommitter missingEmail missingNameBeforeEmail missingObject missingSpaceBeforeDate missingSpaceBeforeEmail missingTag missingTagEntry
	missingTaggerEntry missingTree missingType missingTypeEntry multipleAuthors nulInCommit nulInHeader nullSha1 treeNotSorted unknownType
	unterminatedHeader zeroPaddedDate zeroPaddedFilemode`)

// fatalChecks are those of them that git lets nobody relax.
var fatalChecks = []string{"nulInHeader", "unterminatedHeader"}

// ValidateFsck finds the names and severities of Options.Fsck that are wrong, in the order of the names.
func ValidateFsck(severities map[string]string) (wrong []error) {
	for _, check := range slices.Sorted(maps.Keys(severities)) {
		severity := severities[check]
		switch {
		case !slices.Contains(fsckChecks, check):
			wrong = append(wrong, fmt.Errorf("git has no check of objects %.60q%s; git-fsck(1) lists them", check, didYouMean(check)))
		case severity != "error" && severity != "warn" && severity != "ignore":
			wrong = append(wrong, fmt.Errorf("the severity of %s is %.60q; it has to be error, warn or ignore", check, severity))
		case severity != "error" && slices.Contains(fatalChecks, check):
			wrong = append(wrong, fmt.Errorf("the check %s cannot be relaxed: git takes its failure for an error always", check))
		}
	}
	return wrong
}

func didYouMean(check string) string {
	for _, known := range fsckChecks {
		if strings.EqualFold(known, check) {
			return ", but " + known
		}
	}
	return ""
}

// fsckArguments are the settings of the checks: first whether there are any, then the server's severities, but for those that the repository sets.
func (p *pushing) fsckArguments(set func(key, value string)) {
	on := "true"
	if p.policy.NoFsck {
		on = "false"
	}
	set("receive.fsckObjects", on)
	set("transfer.fsckObjects", on)
	for _, check := range slices.Sorted(maps.Keys(p.options.Fsck)) {
		if !p.policy.OwnFsck[strings.ToLower(check)] {
			set("receive.fsck."+check, p.options.Fsck[check])
		}
	}
}

// fsckFailure is git's message about an object that fails a check.
var fsckFailure = regexp.MustCompile(`error: object ([0-9a-f]{40,64}): ([a-zA-Z0-9]+): `)

// maxExplained is how many checks that failed are explained to a client.
const maxExplained = 3

// explainFsck tells the client which settings accept the objects that git has refused. It does nothing if git named none.
func (p *pushing) explainFsck() error {
	explained := make(map[string]bool)
	for _, m := range fsckFailure.FindAllStringSubmatch(p.complaints.text(), -1) {
		id, check := m[1], m[2]
		if explained[check] || len(explained) == maxExplained {
			continue
		}
		explained[check] = true
		text := fmt.Sprintf("object %s fails the check %s\nto accept it, the administrator sets push.fsck.%s = \"ignore\" for the server, "+
			"or receive.fsck.%s = ignore in this repository's config\n", id, check, check, check)
		if slices.Contains(fatalChecks, check) {
			text = fmt.Sprintf("object %s fails the check %s, which cannot be relaxed\n", id, check)
		}
		if err := p.out.say(text); err != nil {
			return err
		}
	}
	return nil
}
