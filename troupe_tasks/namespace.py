"""The commands' names, for `troupe` and `invoke` alike."""

from __future__ import annotations

from invoke import Collection

from troupe_tasks.commands.backup import listing as backup_list
from troupe_tasks.commands.backup import prune as backup_prune
from troupe_tasks.commands.backup import take as backup_take
from troupe_tasks.commands.chat import chat
from troupe_tasks.commands.config import get, put, show, unset
from troupe_tasks.commands.create import create
from troupe_tasks.commands.delete import delete
from troupe_tasks.commands.doctor import doctor
from troupe_tasks.commands.kit import inspect, pack, publish_, pull
from troupe_tasks.commands.kit import listing as kit_list
from troupe_tasks.commands.listing import listing
from troupe_tasks.commands.logs import logs
from troupe_tasks.commands.move import resize, restore
from troupe_tasks.commands.policy import policy
from troupe_tasks.commands.power import restart, start, stop
from troupe_tasks.commands.receipts import receipts
from troupe_tasks.commands.reset import reset
from troupe_tasks.commands.secret import check as secret_check
from troupe_tasks.commands.secret import put as secret_put
from troupe_tasks.commands.secret import remove as secret_remove
from troupe_tasks.commands.secret import show as secret_show
from troupe_tasks.commands.status import status
from troupe_tasks.commands.update import update
from troupe_tasks.commands.upgrade import upgrade
from troupe_tasks.commands.version import version

namespace = Collection(
    create, listing, status, chat, start, stop, restart, logs, policy, reset, resize, upgrade, restore, delete,
    receipts, doctor, update, version,
    backup=Collection("backup", backup_take, backup_list, backup_prune),
    kit=Collection("kit", kit_list, inspect, pull, pack, publish_),
    secret=Collection("secret", secret_put, secret_check, secret_show, secret_remove),
    config=Collection("config", show, get, put, unset),
)  # fmt: skip
namespace.collections["config"].default = "list"
namespace.collections["backup"].default = "take"
