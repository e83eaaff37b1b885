#!/bin/sh
# Install troupe for the user who runs this, or bring theirs up to date.
#
#     sh install.sh                  the newest release of the address that this installer came from
#     sh install.sh --from DIR       a copy of a release: the files that its SHA256SUMS names; where DIR has a folder
#                                    wheels/, the packages come from there and no network is used
#     sh install.sh --without-units  leaves the unit of Docker's sandbox daemon as it is
#
# Each release gets a folder of its own beside those before it, and one rename makes it the current one, after it has
# proved itself. So one that fails or is killed anywhere leaves the troupe of before as it was; running it again goes
# on, and sweeps up. Nothing of that needs root. Only the unit does, where it is missing or has changed: sudo asks, once.
set -eu
umask 022

# The release session writes here where its release lies.
address=

fetch_program='
import http.client, sys, time, urllib.request

class Https(urllib.request.HTTPRedirectHandler):
    max_redirections = 3
    def redirect_request(self, request, answer, code, message, headers, to):
        if not to.startswith("https://"):
            sys.exit(f"{request.full_url} leads away from https")
        return super().redirect_request(request, answer, code, message, headers, to)

url, target, cap, until = sys.argv[1], sys.argv[2], int(sys.argv[3]), time.monotonic() + int(sys.argv[4])
try:
    with urllib.request.build_opener(Https).open(url, timeout=30) as answer, open(target, "wb") as file:
        got = 0
        while chunk := answer.read1(65536):
            got += len(chunk)
            if got > cap:
                sys.exit(f"{url} is larger than {cap} bytes")
            if time.monotonic() > until:
                sys.exit(f"{url} did not come within {sys.argv[4]} s")
            file.write(chunk)
        if answer.length:
            sys.exit(f"{url} was cut off")
except (OSError, ValueError, http.client.HTTPException) as error:
    sys.exit(f"{url}: {error}")
'

say() { printf 'troupe: %s\n' "$*" >&2; }

# stop WHAT HINT [STATUS]: 2 usage, 3 refused, 4 the machine is not ready (docs/errors.md).
stop() {
    printf 'Error: %s\n  What to do: %s\n' "$1" "$2" >&2
    exit "${3:-4}"
}

read_words() {
    from='' units=yes
    while [ $# -gt 0 ]; do
        case $1 in
            --from)
                [ $# -ge 2 ] || stop '--from needs a folder.' 'sh install.sh --from DIR' 2
                from=$2
                shift ;;
            --without-units) units=no ;;
            *) stop "there is no word $1." 'sh install.sh [--from DIR] [--without-units]' 2 ;;
        esac
        shift
    done
    [ -z "$from" ] || [ -f "$from/SHA256SUMS" ] || stop "$from holds no release." 'give the folder that has SHA256SUMS.' 2
    case ${from:+offline}$address in
        offline* | https://*) ;;
        *) stop 'this installer has no release address.' 'get a release, then: sh install.sh --from DIR' 2 ;;
    esac
}

refuse_root() {
    [ "$(id -u)" -ne 0 ] || stop 'this is for the user who is to run the agents, and you are root.' \
        'run it as that user, without sudo: what needs root asks for it. As root, use a clone: ./troupe' 3
}

# Print a Python that can make environments; nothing where there is none. A name may be a shim that runs nothing, and
# Debian ships Python without ensurepip: so each one is asked, not looked at.
find_python() {
    for name in python3.13 python3.12 python3.11 python3; do
        "$name" -I -c '
import sys
if sys.version_info < (3, 11): sys.exit(1)
import ensurepip, os, venv
print(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))' 2>/dev/null && return 0
    done
    return 0
}

# Where things are, as troupe_tasks/paths.py says: a relative XDG value counts for nothing.
find_places() {
    case ${HOME-} in /*) ;; *) stop 'HOME is not set.' 'log in as the user who is to run troupe.' ;; esac
    case ${XDG_DATA_HOME-} in /*) data=$XDG_DATA_HOME/troupe ;; *) data=$HOME/.local/share/troupe ;; esac
    releases=$data/releases
    work=$releases/.download
    current=$data/current
    program=$HOME/.local/bin/troupe
    if [ -e "$current" ] && [ ! -L "$current" ]; then
        stop "$current is not a link." 'move it away, then run this again.' 3
    fi
    if [ -e "$program" ] || [ -L "$program" ]; then
        [ "$(readlink -- "$program")" = "$current/bin/troupe" ] ||
            stop "$program is not of this installer." 'move it away, then run this again.' 3
    fi
}

# One installer at a time; what a killed one left running, pip for example, holds the lock too and is waited for.
take_lock() {
    for folder in "$data" "$releases"; do
        [ -d "$folder" ] || [ -L "$folder" ] || { mkdir -p "$folder" && chmod 700 "$folder"; } ||
            stop "$folder can't be made." 'see that its folder is yours.'
        # What is run from there, and removed, is to be this user's.
        [ ! -L "$folder" ] || stop "$folder is a link." 'move it away, then run this again.' 3
        [ "$(stat -c %u -- "$folder")" = "$(id -u)" ] ||
            stop "$folder belongs to another user." 'move it away, then run this again.' 3
    done
    exec 9>>"$releases/.lock"
    flock -w 300 9 || stop 'another installer has been at work for 5 minutes.' 'wait for it, then run this again.'
    rm -rf "$work"
    mkdir -m 700 "$work"
}

# fetch NAME CAP_BYTES DEADLINE_S
fetch() {
    if [ -n "$from" ]; then
        cp -- "$from/$1" "$work/$1" || stop "$from has no $1." 'copy the release again, whole.'
    else
        "$python" -I -c "$fetch_program" "$address/$1" "$work/$1" "$2" "$3" </dev/null ||
            stop "$1 could not be fetched; why is above." 'check the network, then run this again.'
    fi
}

# Bring the release into $work, every file proved against SHA256SUMS.
bring() {
    fetch SHA256SUMS 65536 60
    fetch VERSION 256 60
    version=$(cat "$work/VERSION")
    case $version in
        '' | *[!0-9A-Za-z.+-]* | [!0-9]*) stop 'its VERSION is none.' 'tell whoever publishes the release.' ;;
    esac
    wheel=troupe-$version-py3-none-any.whl
    fetch requirements.lock 4194304 120
    fetch "$wheel" 67108864 600
    for name in VERSION requirements.lock "$wheel"; do
        # A name with its sum, once: what is not listed is not proved, and of two sums one is not.
        awk -v name="$name" '$2 == name { rows++; sum = $1 } END { if (rows == 1 && length(sum) == 64) print sum "  " name }' \
            "$work/SHA256SUMS"
    done >"$work/needed"
    if [ "$(wc -l <"$work/needed")" -ne 3 ] || ! (cd "$work" && sha256sum --check --strict --quiet needed >&2); then
        stop 'the release is not what its SHA256SUMS says; nothing was installed.' \
            'run this again; if it stays so, tell whoever publishes the release.'
    fi
    sums=$(sha256sum "$work/SHA256SUMS")
    release=$releases/$version-$(printf %.12s "$sums")
}

# Make the release's own environment. Its mark goes last: one without it is not whole, and is made anew. One that has it
# may be the troupe of before, and a busy machine no proof against it: where it does not prove itself, it stays as it is
# until another one, under the next name, does.
make_release() {
    name=$release number=1
    case $before in "$name"-*) release=$before ;; esac
    while [ -e "$release/troupe.made" ]; do
        if proved; then
            say "$version is here already"
            return
        fi
        number=$((number + 1))
        release=$name-$number
    done
    rm -rf "$release"
    mkdir -m 755 "$release"
    say "making $release with $python (step 1 of 2)"
    "$python" -I -m venv "$release" </dev/null >"$release/troupe.log" 2>&1 || failed "$python could not make it."
    say "installing $(grep -c '==' "$work/requirements.lock") packages, each checked against its hash (step 2 of 2)"
    if [ -n "$from" ] && [ -d "$from/wheels" ]; then
        in_release --no-index --find-links "$from/wheels" --require-hashes -r "$work/requirements.lock"
    else
        in_release --require-hashes -r "$work/requirements.lock"
    fi
    in_release --no-index "$work/$wheel"
    proved || failed "it does not say that it is troupe $version."
    # After a power cut the mark must not be there without what it stands for.
    sync -f "$release"
    touch "$release/troupe.made"
}

# A Python that the system has replaced since leaves an environment that runs nothing.
proved() {
    timeout 60 "$release/bin/troupe" version 2>>"$release/troupe.log" </dev/null | grep -qE "^troupe +$version\$"
}

# Wheels only: no package's own build script runs.
in_release() {
    "$release/bin/python" -I -m pip --disable-pip-version-check --no-input install --quiet --no-deps \
        --only-binary :all: "$@" </dev/null >>"$release/troupe.log" 2>&1 || failed 'pip could not install the packages.'
}

failed() {
    tail -n 15 "$release/troupe.log" >&2
    stop "$1 The troupe of before is as it was." 'mend what is above (network? df -h?), then run this again.'
}

# The new troupe sees to the unit, or says why it can't be yet. What it refuses, or fails at, ends the installation.
settle_units() {
    [ "$units" = yes ] || return 0
    "$release/bin/python" -I -X utf8 -m troupe_tasks.operations.daemon || {
        status=$?
        say 'the troupe of before is as it was.'
        exit "$status"
    }
}

# Two renames, each whole or not at all: the release that is current, and the name on the PATH.
switch() {
    mkdir -p "${program%/*}"
    [ "$(readlink -- "$current" || :)" = "releases/${release##*/}" ] || link "releases/${release##*/}" "$current"
    [ -L "$program" ] || link "$current/bin/troupe" "$program"
    sync -f "$current"
}

# link TARGET NAME
link() {
    rm -f "$2.new"
    ln -s "$1" "$2.new"
    mv -T "$2.new" "$2"
}

# Keep the current release and the one before it, and any that a process runs from or a unit starts. A run that changes
# nothing does not know which one was before.
sweep() {
    rm -rf "$work"
    for old in "$releases"/*/; do
        old=${old%/}
        if [ -e "$old/troupe.made" ]; then
            [ "$before" != "$release" ] || continue
            case $old in "$release" | "$before") continue ;; esac
            ! grep -qrsF -- "$old/" "$HOME/.config/systemd/user" || continue
            ! grep -qsF -- "$old/" /proc/[0-9]*/cmdline || continue
            rm "$old/troupe.made"
        fi
        rm -rf "$old"
    done
}

main() {
    read_words "$@"
    refuse_root
    find_places
    python=$(find_python)
    [ -n "$python" ] || stop 'troupe needs Python 3.11 or newer with its venv module.' \
        'sudo apt-get install --no-install-recommends python3 python3-venv'
    take_lock
    before=$(readlink -- "$current" || :)
    before=${before:+$releases/${before##*/}}
    bring
    make_release
    settle_units
    switch
    sweep
    say "troupe $version is installed: $program"
    case :$PATH: in *:"${program%/*}":*) ;; *) say "${program%/*} is not on your PATH yet: log in again, or add it." ;; esac
}

# All of it is read before anything is done: a download that was cut off does nothing.
main "$@"
