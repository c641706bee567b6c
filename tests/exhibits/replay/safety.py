"""Statements that leave the database, or would disturb what the replay stands on: never run.

They are filtered by their text, in doubt too many; the servers are private, on loopback, and their
accounts may not do most of this anyway.
"""

import re

# Why -> the texts, for every database.
POSTGRESQL = {
    "files and programs": r"""
        \bcopy\b.*\b(to|from)\s+program\b
      | \bcopy\b.*\bto\s+('|e'|:|\$) | \bcopy\b.*\bfrom\s+('(?!/[^']*\.data)|e')
      | \bpg_(read|write)(_binary)?_file | \bpg_file_(write|rename|unlink|sync) | \bpg_ls_\w*dir
      | \bpg_stat_file | \blo_(im|ex)port | \bcreate\s+(or\s+replace\s+)?.*\blanguage\s+\w*u\b
      | \bload\s+' | \bpg_logdir_ls | \bfile_fdw | \badminpack | \bset\s+dynamic_library_path
      | \bcreate\s+extension\b.*\b(plpython\w*u|plperlu|pltclu) | \bpg_current_logfile
      | \bbasebackup_to_shell | \bcreate\s+tablespace\b.*\blocation\s+'[^']
    """,
    "whole server": r"""
        \balter\s+system\b | \bpg_(terminate|cancel)_backend | \bpg_reload_conf
      | \bpg_rotate_logfile | \bpg_promote | \bpg_switch_wal | \bpg_create_restore_point
      | \bpg_(start|stop)_backup
      | \bpg_backup_(start|stop) | \bcheckpoint\b(?!_) | \b(create|drop|alter)\s+database\b
      | \bpg_log_backend_memory | \bpg_stat_reset | \bpg_stat_force_next_flush
      | \bvacuum\s+(full\s*)?; | ^\s*vacuum(\s+(full|freeze|verbose|analyze))*\s*$
      | \bpg_prewarm | \bautoprewarm | \bpg_wal_replay | \bpg_import_system
    """,
    "other servers": r"""
        \bcreate\s+subscription\b.*\bconnect\s*=\s*true | \bprimary_conninfo | \bhost(addr)?\s*=\s*'
    """,
    "waits": r"\bpg_sleep(_for|_until)?\s*\(\s*('|[1-9]) | \bdeadlock_timeout",
}
MARIADB = {
    "files and programs": r"""
        \bload\s+(data|xml)\b | \binto\s+(outfile|dumpfile)\b | \bload_file\s*\( | \bsoname\b
      | \b(data|index)\s+directory\b | ^\s*\\
      | \bengine\s*=?\s*(connect|csv|federatedx?|s3|spider)\b
    """,
    "whole server": r"""
        ^\s*(shutdown|kill|flush|reset|purge|change\s+master|install|uninstall|backup|binlog)\b
      | ^\s*(start|stop)\s+(all\s+)?(slave|replica|group)s?\b
      | \bcreate\s+(or\s+replace\s+)?server\b
      | \b(global|persist|persist_only)\b | \bset\s+password\b | ^\s*drop\s+(user|role)\b.*\bexhibit
      | \b(insert|update|delete|replace|alter|drop|truncate|rename|create|repair|optimize|analyze)\b
        .*\bmysql\s*\.\s*`?\w | ^\s*use\s+`?(mysql|sys|performance_schema|information_schema)\b
      | \bdrop\s+(database|schema)\s+(if\s+exists\s+)?`?(mysql|sys|performance_schema)\b
      | \bexecute\s+immediate\b.*\b(shutdown|kill)\b | \bcreate\b.*\bevent\b | \balter\b.*\bevent\b
      | \b(drop|rename|alter)\s+user\b.*\b(root|mariadb\.sys)\b | \bmysql\s*\.\s*`?global_priv\b
      | \bfor\s+exhibit | \bexhibit@ | \bset\s+(session\s+)?(sql_)?log_(bin|off|output)\b
      | \bset\s+.*\b(debug_dbug|debug_sync|debug)\b | \bxa\s+(recover|prepare)\b
    """,
    "waits": r"""
        \b(sleep|benchmark)\s*\( | ^(\s|/\*\*/|\w+:)*(loop|repeat|while|for)\b
      | \bmaster_(pos|gtid)_wait\b | \bget_lock\s*\(.*,\s*\d{2,}
    """,
}
SQLITE = {
    "files and programs": r"""
        \battach\b.*['"](?!:memory:|file:[\w.]+\?mode=memory)[^'"]*/ | \bvacuum\b.*\binto\b
      | \bload_extension\s*\( | \b(readfile|writefile|edit|fts3_tokenizer)\s*\(
      | \bpragma\s+temp_store_directory | \bpragma\s+data_store_directory
    """,
    "memory": r"""
        \b(zeroblob|randomblob)\s*\(\s*\d{8,} | \bpragma\s+(hard|soft)_heap_limit
      | \bgenerate_series | (\blimit|<=?)\s*\d{6,} | \bpragma\s+(\w+\.)?mmap_size
    """,
}
DANGERS = {
    corpus: [
        (why, re.compile(pattern, re.IGNORECASE | re.DOTALL | re.VERBOSE))
        for why, pattern in dangers.items()
    ]
    for corpus, dangers in (("postgresql", POSTGRESQL), ("mariadb", MARIADB), ("sqlite", SQLITE))
}
LONGEST = 100_000  # characters of a statement


def danger(corpus: str, text: str) -> str | None:
    """Why the statement must not be run; None: it may."""
    if len(text) > LONGEST:
        return "long"
    for why, pattern in DANGERS[corpus]:
        if pattern.search(text):
            return why
    return None
